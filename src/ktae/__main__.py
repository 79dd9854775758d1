"""`python -m ktae`: see `python -m ktae --help`."""

import argparse
import sys


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="ktae", description="Token-level credit assignment for veRL.")
    commands = parser.add_subparsers(dest="command", required=True)
    doctor = commands.add_parser("doctor", help="will algorithm.adv_estimator=ktae work here, and if not, why not")
    doctor.add_argument("overrides", nargs="*", metavar="key=value", help="the Hydra overrides of your run")
    doctor.add_argument("--config-dir", help="as for veRL")
    doctor.add_argument("--config-name", default="ppo_trainer", help="as for veRL")
    doctor.add_argument("--ray", action="store_true", help="look into a Ray worker too (RAY_ADDRESS, or a new cluster)")
    return _doctor(parser.parse_args(arguments))


def _doctor(arguments: argparse.Namespace) -> int:
    from ktae.integrations.verl.doctor import diagnose

    problems = 0
    for ok, text, fix in diagnose(arguments.overrides, arguments.config_dir, arguments.config_name, arguments.ray):
        print(f"{'ok  ' if ok else 'FAIL'}  {text}" + (f"\n      fix: {fix}" if fix else ""), flush=True)
        problems += not ok
    print(f"{problems} problem{'s' * (problems != 1)} found" if problems else "no problem found")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
