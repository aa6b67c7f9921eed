import sys

from blobnet.support.interrupt import at_once


def main() -> int:
    """The command line as a process: see blobnet.command_line.main.main."""
    with at_once():
        from blobnet.command_line import main

        return main.main()


if __name__ == "__main__":
    sys.exit(main())
