"""A script that the tests run; it is no module of tests."""

collect_ignore = ["worker.py"]
