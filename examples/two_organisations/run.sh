#!/usr/bin/env bash
# A clinic, an insurer and a dealer on one machine, from key generation to the twin: every command that three
# administrators would type, each in a folder of its own. Where root allows, each sits in a network namespace of its own,
# so that nothing but the network connects them; elsewhere they use ports of the loopback device.
#
#     examples/two_organisations/run.sh [FOLDER]        needs vertinumpyro[crypten,mrf,report] on the PATH
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
folder="$(mkdir -p "${1:-two-organisations}" && cd "${1:-two-organisations}" && pwd)"
[[ -z "$(ls -A "$folder")" ]] || { echo "$folder is not empty; name another folder" >&2; exit 2; }
cd "$folder"
everybody=(clinic insurer dealer)
python="${PYTHON:-python3}"
export COLUMNS="${COLUMNS:-100}"

say() { printf '\n\033[1m==> %s\033[0m\n' "$*"; }

# -- three hosts ---------------------------------------------------------------------------------------
# Namespaces vnp-clinic, vnp-insurer and vnp-dealer, joined by a bridge in a fourth.
close_hosts() {
    for name in "${everybody[@]}" switch; do ip netns delete "vnp-$name" 2>/dev/null || true; done
}
open_hosts() {
    [[ "$(id -u)" == 0 && -z "${LOOPBACK:-}" ]] && command -v ip >/dev/null || return 1
    close_hosts
    ip netns add vnp-switch 2>/dev/null || return 1
    ip -n vnp-switch link add bridge type bridge 2>/dev/null || { close_hosts; return 1; }
    ip -n vnp-switch link set bridge up
    local number=0
    for name in "${everybody[@]}"; do
        number=$((number + 1))
        ip netns add "vnp-$name"
        ip -n vnp-switch link add "to$number" type veth peer name eth0 netns "vnp-$name" 2>/dev/null || { close_hosts; return 1; }
        ip -n vnp-switch link set "to$number" master bridge up
        ip -n "vnp-$name" address add "10.77.0.$number/24" dev eth0
        ip -n "vnp-$name" link set eth0 up
        ip -n "vnp-$name" link set lo up
    done
}
program=(vertinumpyro)
if open_hosts; then
    trap close_hosts EXIT
    echo "Three hosts in network namespaces, 10.77.0.1 to 10.77.0.3."
    clinic_address=10.77.0.1:7450
    insurer_address=10.77.0.2:7450
    at() { ip netns exec "vnp-$1" "${program[@]}" "${@:2}"; }
else
    echo "Three programs on the loopback device."
    clinic_address=127.0.0.1:7451
    insurer_address=127.0.0.1:7452
    at() { "${program[@]}" "${@:2}"; }
fi

# Runs one command at all three at once; fails if one of them does. Prints the clinic's view.
together() {
    local processes=() failed=0
    for name in "${everybody[@]}"; do
        at "$name" "$1" "$2" --party "$name/party.toml" --wait 60 >"$name/$1.log" 2>&1 &
        processes+=("$!")
    done
    for process in "${processes[@]}"; do wait "$process" || failed=1; done
    if ((failed)); then tail -n 15 ./*/"$1.log" >&2; return 1; fi
    cat "clinic/$1.log"
}

# -- every organisation for itself ---------------------------------------------------------------------
say "Keys and certificates"
at clinic party init clinic --folder clinic --table table.csv
at insurer party init insurer --folder insurer --table table.csv
at dealer party init dealer --folder dealer
"$python" "$here/make_tables.py" .
members=(--member "clinic=clinic/certificate.pem@$clinic_address"
    --member "insurer=insurer/certificate.pem@$insurer_address"
    --helper dealer=dealer/certificate.pem)

# -- whom do both know? --------------------------------------------------------------------------------
say "The linkage: drafted, approved by both, run by all"
at clinic study draft-linkage config.toml "${members[@]}" --pad-to 20000 --out linkage.toml
at clinic study approve linkage.toml --party clinic/party.toml --yes >clinic/approve.log
at insurer study approve linkage.toml --party insurer/party.toml --yes
together link linkage.toml
common="$(sed -n 's/.*num_records = \([0-9]*\).*/\1/p' clinic/link.log)"
sed -i.before "s/^num_records = .*/num_records = $common/" config.toml

# -- the study -----------------------------------------------------------------------------------------
say "The study: drafted for $common people, approved by both"
at clinic study draft config.toml --method vertimrf "${members[@]}" --linkage linkage.toml --name "twin of visits"
at clinic study approve study.toml --party clinic/party.toml --yes >>clinic/approve.log
at insurer study approve study.toml --party insurer/party.toml --yes

say "The run"
together join study.toml
cmp clinic/run/synthetic.csv insurer/run/synthetic.csv
echo "Both have the same twin: clinic/run/synthetic.csv, insurer/run/synthetic.csv."

# -- a study in which the insurer cheats -----------------------------------------------------------------
say "A second study, in which the insurer puts made-up rows in the place of its columns"
at clinic study draft config.toml --method vertimrf "${members[@]}" --linkage linkage.toml --name again --out again.toml >again.log
for name in clinic insurer; do at "$name" study approve again.toml --party "$name/party.toml" --yes >>again.log; done
at dealer join again.toml --party dealer/party.toml --wait 60 >dealer/again.log 2>&1 &
(program=("$python" "$here/cheat.py"); at insurer join again.toml --party insurer/party.toml --out insurer/again --wait 60) \
    >insurer/again.log 2>&1 &
status=0
at clinic join again.toml --party clinic/party.toml --out clinic/again --wait 60 >clinic/again.log 2>&1 || status=$?
wait
cat clinic/again.log
((status != 0)) && [[ ! -e clinic/again/synthetic.csv && ! -e insurer/again/synthetic.csv ]]
grep -q failed_check clinic/ledger/*/privacy.json

say "What the clinic's data have spent"
at clinic budget --party clinic/party.toml
