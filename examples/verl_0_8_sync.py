"""The trainer `main_ppo_sync` of veRL 0.8, imported: python examples/verl_0_8_sync.py algorithm.adv_estimator=ktae ...

Started with `python -m verl.trainer.main_ppo_sync` it works too, if VERL_USE_EXTERNAL_MODULES=ktae.integrations.verl
is set for that command. Where only Ray's workers have the variable, it has to be started like this.
"""

from verl.trainer.main_ppo_sync import main

main()
