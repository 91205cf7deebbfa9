"""The cache of the model states between segments, filled when the model is scored and used by the next epoch."""

from siafu.nn.temporal import State, TemporalModel


class StateCache:
    """States between segments, valid only until a weight of the model changes."""

    def __init__(self, model: TemporalModel) -> None:
        self._model, self._states = model, list[State]()
        self._versions = self._weight_versions()

    def store(self, states: list[State]) -> None:
        """Store states that were computed with the current weights."""
        self._states, self._versions = states, self._weight_versions()

    def take(self) -> list[State]:
        """Remove and return the states; an empty list if the weights have changed."""
        states, self._states = self._states, []
        return states if self._versions == self._weight_versions() else []

    def _weight_versions(self) -> list[int]:
        """Torch's version counter of each weight, which grows with every in-place write."""
        return [parameter._version for parameter in self._model.parameters()]
