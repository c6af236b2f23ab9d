from tests.cli.conftest import elsewhere, project

__all__ = ["elsewhere", "project"]
