"""Writes the small networks in tests/files that the tests of the runner and of devices run.

    python tests/make_small_tflite.py

Needs tensorflow. They are kept in the repository because making them takes longer than all the tests
that use them. Weights are random.

small.tflite       two convolutions and a linear layer
small_int8.tflite  the same, quantised
partly.tflite      has an operator XNNPACK does not run
free_size.tflite   has a batch of any size
"""

import os
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import tensorflow as tf

FILES = Path(__file__).parent / "files"
SHAPE = (1, 16, 16, 3)


class Small(tf.Module):
    def __init__(self, rng):
        super().__init__()
        self.first = tf.constant(rng.normal(0, 0.3, (3, 3, 3, 8)), tf.float32)
        self.depthwise = tf.constant(rng.normal(0, 0.3, (3, 3, 8, 1)), tf.float32)
        self.last = tf.constant(rng.normal(0, 0.3, (8, 10)), tf.float32)

    @tf.function
    def __call__(self, image):
        x = tf.nn.relu6(tf.nn.conv2d(image, self.first, 2, "SAME"))
        x = tf.nn.relu6(tf.nn.depthwise_conv2d(x, self.depthwise, [1, 1, 1, 1], "SAME"))
        return tf.matmul(tf.reduce_mean(x, [1, 2]), self.last)


def converter_of(function, shape=SHAPE, trackable=None):
    concrete = function.get_concrete_function(tf.TensorSpec(shape, tf.float32, name="image"))
    return tf.lite.TFLiteConverter.from_concrete_functions([concrete], trackable)


def quantised(converter, rng):
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: (
        [rng.uniform(-1, 1, SHAPE).astype(np.float32)] for _ in range(20)
    )
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.inference_input_type = converter.inference_output_type = tf.int8
    return converter


def main():
    rng = np.random.default_rng(0)
    net = Small(rng)
    converters = {
        "small.tflite": converter_of(net.__call__, trackable=net),
        "small_int8.tflite": quantised(converter_of(net.__call__, trackable=net), rng),
        "partly.tflite": converter_of(tf.function(lambda image: tf.cumsum(tf.nn.relu(2 * image), axis=1))),
        "free_size.tflite": converter_of(tf.function(lambda image: tf.nn.relu(2 * image)), (None, 8, 8, 3)),
    }
    for name, converter in converters.items():
        (FILES / name).write_bytes(converter.convert())


if __name__ == "__main__":
    main()
