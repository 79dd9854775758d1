"""The veRL plug-in: `algorithm.adv_estimator=ktae`. Importing this module installs it.

veRL imports it by itself, through the entry-point group `verl.plugins` (veRL >= 0.9) or `VERL_USE_EXTERNAL_MODULES`, in
every process that imports verl. A registered estimator is not handed the token ids. So besides registering one, the
plug-in wraps the functions of the trainers that call it, and these lend it what they have:

`seams`          the list of what is patched
`import_hooks`   patches a module of verl right after it is imported, without importing it
`dataproto`      the trainers that pass a DataProto around: V0, one_step_off, fully_async
`transfer_queue` the default trainer, V1, which keeps its batch in TransferQueue
`lending`        what a trainer lends to the estimator
`options`        `+algorithm.ktae.*` -> KTAEConfig
`estimator`      the registered function; with `labels`, which rollouts are correct, `base`, the advantages of another
                 estimator, and `side_dump`, what training used, on disk
`doctor`         looks whether all this works; `probe` is what it executes in other processes
"""

import logging

logger = logging.getLogger(__name__)

try:
    from ktae.integrations.verl.seams import install

    install()
except Exception:
    # veRL swallows the errors of entry points; the user would see only "Unknown advantage estimator simply: ktae".
    logger.warning("The ktae plug-in for veRL could not be installed; adv_estimator=ktae will not work.", exc_info=True)
    raise
