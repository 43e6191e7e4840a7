"""Networks of events as ONNX, for inference without this package; onnx is imported only
where it is asked for.

Inputs: ``hlf`` ``(n, features)``, unscaled; of recurrent networks also ``sequence``
``(n, length, columns)``, scaled and in the order of
:func:`cmsspark.apps.events.networks.make_sequences`, and ``particles`` ``(n)``, how
      many are no padding. Output: ``probabilities`` ``(n, classes)``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from cmsspark.apps.events.models import NETWORKS, read_description
from cmsspark.apps.events.networks import GRU_WIDTH, HIDDEN, Network, load
from cmsspark.base import extras
from cmsspark.base.arrays import Array
from cmsspark.base.errors import OutputError, UsageError

_OPSET: Final = 17
_IR_VERSION: Final = 8


def export_onnx(folder: Path, output: Path) -> None:
    """Write the network of a model's folder as an ONNX file.

    Raises UsageError (2) for trees and without onnx, InputMissing (66), DataError (65),
    OutputError (73).
    """
    kind = str(read_description(folder)["kind"])
    if kind not in NETWORKS:
        raise UsageError(
            f"networks can be written as ONNX, not {kind}",
            where=folder,
            next_step="read xgboost.ubj with XGBoost itself, and trees.npz with cmsspark.apps.events.models.load",
        )
    extras.require("models as ONNX need", "onnx", extra="onnx")
    import onnx

    model = _Graph(load(folder)).model()
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(model, str(output))
    except OSError as error:
        raise OutputError(
            "the model cannot be written", where=output, found=error.strerror
        ) from None


class _Graph:
    """The nodes and weights of a network."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.weights = {
            name: np.asarray(value, np.float32) for name, value in network.weights.items()
        }
        self.nodes: list[Any] = []
        self.constants: dict[str, Array] = {}

    def model(self) -> Any:
        """Return the checked model."""
        from onnx import TensorProto, checker, helper, numpy_helper

        network, layout = self.network, self.network.layout
        inputs = []
        if network.kind != "sequence":
            inputs.append(
                helper.make_tensor_value_info("hlf", TensorProto.FLOAT, ["n", layout.hlf_count])
            )
        if network.needs_low_level:
            shape = ["n", "length", len(layout.columns)]
            inputs.append(helper.make_tensor_value_info("sequence", TensorProto.FLOAT, shape))
            inputs.append(helper.make_tensor_value_info("particles", TensorProto.INT32, ["n"]))
        self._node("Softmax", [self._logits()], "probabilities", axis=-1)
        shape = ["n", len(layout.classes)]
        graph = helper.make_graph(
            self.nodes,
            network.kind,
            inputs,
            [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, shape)],
            [numpy_helper.from_array(value, name) for name, value in self.constants.items()],
        )
        opsets = [helper.make_opsetid("", _OPSET)]
        model = helper.make_model(
            graph, opset_imports=opsets, ir_version=_IR_VERSION, producer_name="cmsspark"
        )
        facts = {
            "classes": layout.class_names,
            "features": layout.feature_names,
            "columns": layout.columns,
        }
        helper.set_model_props(model, {name: ",".join(values) for name, values in facts.items()})
        checker.check_model(model)
        return model

    def _logits(self) -> str:
        kind = self.network.kind
        if kind == "hlf":
            name = self._scaled_hlf()
            for number in range(len(HIDDEN)):
                name = self._node("Relu", [self._dense(f"dense{number}", name)], f"relu{number}")
            return self._dense("out", name)
        state = self._gru()
        if kind == "inclusive":
            both = self._node("Concat", [state, self._scaled_hlf()], "both", axis=-1)
            state = self._node("Relu", [self._dense("dense", both)], "relu")
        return self._dense("out", state)

    def _scaled_hlf(self) -> str:
        """Return the features scaled as :meth:`Scalers.hlf` does: constant ones become 0."""
        scalers = self.network.scalers
        span = scalers.maximum - scalers.minimum
        factor = np.where(span > 0, 1 / np.where(span > 0, span, 1.0), 0.0)
        minimum, scale = (
            self._constant("minimum", scalers.minimum),
            self._constant("scale", factor),
        )
        return self._node("Mul", [self._node("Sub", ["hlf", minimum], "shifted"), scale], "scaled")

    def _gru(self) -> str:
        """Return the state after the last particle. ONNX has the update gate first, we
        the reset gate.
        """

        def gates(name: str) -> Array:
            reset, update, new = np.split(self.weights[name], 3, axis=-1)
            return np.concatenate([update, reset, new], axis=-1)

        biases = np.concatenate([gates("gru/bias"), gates("gru/state_bias")])[None]
        inputs = [
            self._node("Transpose", ["sequence"], "by_particle", perm=[1, 0, 2]),
            self._constant("gru_weight", gates("gru/weight").T[None]),
            self._constant("gru_state", gates("gru/state").T[None]),
            self._constant("gru_bias", biases),
            "particles",
        ]
        self._node("GRU", inputs, "", "last", hidden_size=GRU_WIDTH, linear_before_reset=1)
        return self._node(
            "Squeeze", ["last", self._constant("direction", np.array([0]), np.int64)], "state"
        )

    def _dense(self, name: str, values: str) -> str:
        weight, bias = (
            self._constant(f"{name}_{part}", self.weights[f"{name}/{part}"])
            for part in ("weight", "bias")
        )
        return self._node("Gemm", [values, weight, bias], f"{name}_sum")

    def _constant(self, name: str, value: Array, kind: Any = np.float32) -> str:
        self.constants[name] = np.ascontiguousarray(value, kind)
        return name

    def _node(self, kind: str, inputs: list[str], *outputs: str, **attributes: Any) -> str:
        from onnx import helper

        self.nodes.append(helper.make_node(kind, inputs, list(outputs), **attributes))
        return outputs[-1]
