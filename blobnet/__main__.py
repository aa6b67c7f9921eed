import sys

from blobnet.interrupt import while_importing


def main() -> int:
    """The command line as a process: see blobnet.cli.main."""
    with while_importing():
        from blobnet import cli
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
