"""States between blocks of time, from when the model is scored until it learns on with the same weights."""

from siafu.nn.temporal import State, TemporalModel


class Known:
    """States that were kept for a model as it is: once its weights have moved there are none."""

    def __init__(self, model: TemporalModel) -> None:
        self._model, self._states = model, list[State]()
        self._versions = self._now()

    def keep(self, states: list[State]) -> None:
        """Keep what was found with the weights as they are."""
        self._states, self._versions = states, self._now()

    def taken(self) -> list[State]:
        """What was kept, if the weights are still those; it is kept no longer."""
        states, self._states = self._states, []
        return states if self._versions == self._now() else []

    def _now(self) -> list[int]:
        """A number for each weight that changes whenever it is written to."""
        return [parameter._version for parameter in self._model.parameters()]
