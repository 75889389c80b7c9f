"""`python -m coterie`, the same as the command `coterie`."""

from coterie.app.cli.main import run_as_program

if __name__ == "__main__":
    run_as_program()
