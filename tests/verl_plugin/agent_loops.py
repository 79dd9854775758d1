"""An agent whose sessions have one or two outputs, for veRL to load by name."""

from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop


class SecondTryAgentLoop(SingleTurnAgentLoop):
    """In every third session the agent answers a second time; both answers are trained on."""

    async def run(self, sampling_params, *, session_id, **kwargs):
        tries = 2 if session_id % 3 == 0 else 1
        return [await super(SecondTryAgentLoop, self).run(sampling_params, **kwargs) for _ in range(tries)]
