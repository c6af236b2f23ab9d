"""The DPVI paper's own protocol, Eqs. 20-30, which benchmarks compare the library's with. No part of the library."""
