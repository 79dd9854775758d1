"""`ktae`, or `python -m ktae`: see `ktae --help`."""

import argparse
import logging
import os
import sys

from ktae.report.arguments import add_arguments


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="ktae", description="Token-level credit assignment: see it, check it.")
    commands = parser.add_subparsers(required=True)
    _add_doctor(commands.add_parser("doctor", help="will algorithm.adv_estimator=ktae work here, and if not, why not"))
    _add_report(commands.add_parser("report", help="the key tokens of rollouts"))
    chosen, further = parser.parse_known_args(arguments)
    unknown = [argument for argument in further if argument.startswith("-")]
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    chosen.operands += further  # argparse leaves those that come after an option
    try:
        return chosen.run(chosen)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # as in `ktae report ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left is flushed at exit
        return 141


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("operands", nargs="*", metavar="key=value", help="the Hydra overrides of your run")
    parser.add_argument("--config-dir", "-cd", "--config-path", "-cp", help="directory of your configuration")
    parser.add_argument("--config-name", "-cn", default="ppo_trainer", help="as for veRL")
    parser.add_argument("--ray", action="store_true", help="look into a Ray worker too (RAY_ADDRESS, or a new cluster)")
    parser.set_defaults(run=_doctor)


def _doctor(arguments: argparse.Namespace) -> int:
    logging.disable(logging.WARNING)  # what the plug-in warns of is said below
    try:
        from ktae.integrations.verl.doctor import diagnose
    except ImportError as error:
        print(f"FAIL  the plug-in cannot be imported: {error}\n1 problem found")
        return 1
    problems = 0
    for ok, text, fix in diagnose(arguments.operands, arguments.config_dir, arguments.config_name, arguments.ray):
        print(f"{'ok  ' if ok else 'FAIL'}  {text}" + (f"\n      fix: {fix}" if fix else ""), flush=True)
        problems += not ok
    print(f"{problems} problem{'s' * (problems != 1)} found" if problems else "no problem found")
    return 1 if problems else 0


def _add_report(parser: argparse.ArgumentParser) -> None:
    add_arguments(parser)
    parser.set_defaults(run=_report)


def _report(arguments: argparse.Namespace) -> int:
    try:
        from ktae.report.command import run
    except ImportError as error:
        print(f"ktae report: {error}. It needs the extra: pip install 'ktae[report]'", file=sys.stderr)
        return 1
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
