import sys

from blobnet.interrupt import at_once


def main() -> int:
    """The command line as a process: see blobnet.cli.main."""
    with at_once():
        from blobnet import cli

        return cli.main()


if __name__ == "__main__":
    sys.exit(main())
