"""What secure backends with a process for each party share: processes and their links, a party's encoded inputs."""
