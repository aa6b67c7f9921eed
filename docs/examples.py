"""An example for each public class, which the reference shows below its name; a test runs this file.

What stands behind a line is the shape of a sample at the node that it makes.
"""

from __future__ import annotations

import numpy as np

import blobnet as bn
from blobnet import augment, callbacks, layers, losses, optimizers, schedules

images = layers.Input(3, 32, 32)()
series = layers.Input(16, width=64)()
volumes = layers.Input(1, depth=8, height=16, width=16)()
values = layers.Input(64)()
features = layers.Conv2D(32, 3, padding="same")(images)

# blobnet.layers.Activation
node = layers.Activation("relu")(features)  # (32, 32, 32)
node = layers.Activation("leaky_relu", slope=0.2)(features)  # (32, 32, 32)

# blobnet.layers.AdaptiveAveragePool
node = layers.AdaptiveAveragePool(7)(features)  # (32, 7, 7)

# blobnet.layers.AdaptiveMaxPool
node = layers.AdaptiveMaxPool((4, 2))(features)  # (32, 4, 2)

# blobnet.layers.Add
node = layers.Add()([features, features])  # (32, 32, 32)
node = features + features  # (32, 32, 32)

# blobnet.layers.AveragePool1D
node = layers.AveragePool1D(2)(series)  # (16, 32)

# blobnet.layers.AveragePool2D
node = layers.AveragePool2D(2)(features)  # (32, 16, 16)

# blobnet.layers.AveragePool3D
node = layers.AveragePool3D(2)(volumes)  # (1, 4, 8, 8)

# blobnet.layers.BatchNorm
node = layers.Conv2D(32, 3, padding="same", bias=False)(images)  # (32, 32, 32)
node = layers.BatchNorm()(node)  # (32, 32, 32)

# blobnet.layers.Concat
node = layers.Concat()([images, features])  # (35, 32, 32)

# blobnet.layers.Constant
node = layers.Constant(np.ones((3, 32, 32), np.float32))()  # (3, 32, 32)

# blobnet.layers.Contraction
text = "function (I[N, C, ...], W[F, C]) -> (O) { O[n, f, ... : N, F, ...] = +(I[n, c, ...] * W[f, c]); }"
node = layers.Contraction(text, sizes={"F": 8})(images)  # (8, 32, 32)

# blobnet.layers.Conv1D
node = layers.Conv1D(32, 7, padding="same", activation="relu")(series)  # (32, 64)

# blobnet.layers.Conv2D
node = layers.Conv2D(32, 3, padding="same", activation="relu")(images)  # (32, 32, 32)
node = layers.Conv2D(64, 3, stride=2, padding=1)(images)  # (64, 16, 16)
node = layers.Conv2D(32, 3, padding="same", groups=32)(features)  # (32, 32, 32)

# blobnet.layers.Conv3D
node = layers.Conv3D(8, 3, padding="same")(volumes)  # (8, 8, 16, 16)

# blobnet.layers.ConvTranspose1D
node = layers.ConvTranspose1D(8, 2, stride=2)(series)  # (8, 128)

# blobnet.layers.ConvTranspose2D
node = layers.ConvTranspose2D(16, 2, stride=2)(features)  # (16, 64, 64)

# blobnet.layers.ConvTranspose3D
node = layers.ConvTranspose3D(4, 2, stride=2)(volumes)  # (4, 16, 32, 32)

# blobnet.layers.Dense
node = layers.Dense(10)(layers.Flatten()(images))  # (10,)

# blobnet.layers.DepthToSpace
node = layers.DepthToSpace(2)(features)  # (8, 64, 64)

# blobnet.layers.Dropout
node = layers.Dropout(0.5)(values)  # (64,)

# blobnet.layers.Embedding
node = layers.Embedding(1000, 16)(layers.Input(20)())  # (16, 20)

# blobnet.layers.Flatten
node = layers.Flatten()(images)  # (3072,)

# blobnet.layers.GRU
node = layers.GRU(8, return_sequences=False)(series)  # (8,)

# blobnet.layers.GlobalAveragePool
node = layers.GlobalAveragePool()(features)  # (32,)

# blobnet.layers.GlobalMaxPool
node = layers.GlobalMaxPool()(features)  # (32,)

# blobnet.layers.GroupNorm
node = layers.GroupNorm(8)(features)  # (32, 32, 32)

# blobnet.layers.Input
node = layers.Input(3, 224, 224)()  # (3, 224, 224)
node = layers.Input(16, width=64)()  # (16, 64)
node = layers.Input(64)()  # (64,)

# blobnet.layers.InstanceNorm
node = layers.InstanceNorm()(features)  # (32, 32, 32)

# blobnet.layers.Interleave
node = layers.Interleave()([images, images])  # (6, 32, 32)

# blobnet.layers.LSTM
node = layers.LSTM(8, bidirectional=True)(series)  # (16, 64)

# blobnet.layers.LayerNorm
node = layers.LayerNorm()(features)  # (32, 32, 32)

# blobnet.layers.LocalResponseNorm
node = layers.LocalResponseNorm(5)(features)  # (32, 32, 32)

# blobnet.layers.MatMul
node = layers.MatMul()([layers.Input(8, 5, 6)(), layers.Input(8, 6, 7)()])  # (8, 5, 7)

# blobnet.layers.MaxPool1D
node = layers.MaxPool1D(2)(series)  # (16, 32)

# blobnet.layers.MaxPool2D
node = layers.MaxPool2D(2)(features)  # (32, 16, 16)
node = layers.MaxPool2D(3, 2, padding=1)(features)  # (32, 16, 16)

# blobnet.layers.MaxPool3D
node = layers.MaxPool3D(2)(volumes)  # (1, 4, 8, 8)

# blobnet.layers.MultiHeadAttention
node = layers.MultiHeadAttention(4)(series)  # (16, 64)

# blobnet.layers.Multiply
node = layers.Multiply()([features, layers.GlobalAveragePool()(features)])  # (32, 32, 32)

# blobnet.layers.PReLU
node = layers.PReLU()(features)  # (32, 32, 32)

# blobnet.layers.Pad
node = layers.Pad(2)(images)  # (3, 36, 36)

# blobnet.layers.Permute
node = layers.Permute((1, 0))(series)  # (64, 16)

# blobnet.layers.Reshape
node = layers.Reshape((4, 4, 4))(values)  # (4, 4, 4)

# blobnet.layers.Scale
node = layers.Scale()(features)  # (32, 32, 32)

# blobnet.layers.Slice
node = layers.Slice([(0, 16), None, (8, 24)])(features)  # (16, 32, 16)

# blobnet.layers.SpaceToDepth
node = layers.SpaceToDepth(2)(images)  # (12, 16, 16)

# blobnet.layers.SqueezeExcite
node = layers.SqueezeExcite(8)(features)  # (32, 32, 32)

# blobnet.layers.Standardize
node = layers.Standardize()(images)  # (3, 32, 32)

# blobnet.layers.StochasticDepth
node = features + layers.StochasticDepth(0.1)(features)  # (32, 32, 32)

# blobnet.layers.Tokens
node = layers.Tokens()(layers.Conv2D(192, 8, stride=8)(images))  # (192, 17)

# blobnet.layers.Upsample
node = layers.Upsample(2)(features)  # (32, 64, 64)

# blobnet.losses.BinaryCrossEntropy
loss = losses.BinaryCrossEntropy()  # for several labels that may hold at once: y is (N, labels), 0 or 1

# blobnet.losses.CenterNet
loss = losses.CenterNet()  # for boxes: y is (N, boxes, 5), class, left, top, right, bottom

# blobnet.losses.CrossEntropy
loss = losses.CrossEntropy(label_smoothing=0.1)  # model.fit(x, y, loss=loss)

# blobnet.losses.Dice
loss = losses.Dice()  # for masks, where some classes are rare

# blobnet.losses.Expression
loss = losses.Expression("function (P[N, C], T[N, C]) -> (L) { L[n] = +(abs(P[n, c] - T[n, c]) / C); }")

# blobnet.losses.Focal
loss = losses.Focal(gamma=2.0)

# blobnet.losses.Huber
loss = losses.Huber(delta=1.0)

# blobnet.losses.MeanAbsoluteError
loss = losses.MeanAbsoluteError()

# blobnet.losses.MeanSquaredError
loss = losses.MeanSquaredError()

# blobnet.metrics.Expression
metric = bn.metrics.Expression("function (P[N, C], T[N, C]) -> (M) { M[n] = >(abs(P[n, c] - T[n, c])); }", "worst")

# blobnet.optimizers.SGD
optimizer = optimizers.SGD(0.01, momentum=0.9, weight_decay=5e-4)  # model.fit(x, y, optimizer=optimizer)

# blobnet.optimizers.Adam
optimizer = optimizers.Adam(1e-3)

# blobnet.optimizers.AdamW
optimizer = optimizers.AdamW(1e-3, weight_decay=0.05, rates={"head": 1.0, "*": 0.1})

# blobnet.optimizers.RMSprop
optimizer = optimizers.RMSprop(1e-3)

# blobnet.optimizers.Lion
optimizer = optimizers.Lion(3e-4, weight_decay=0.1)

# blobnet.optimizers.LAMB
optimizer = optimizers.LAMB(4e-3, weight_decay=0.02)

# blobnet.optimizers.Muon
optimizer = optimizers.Muon(0.02, weight_decay=0.01)  # filters; AdamW(0.015 * 0.02) for the rest

# blobnet.schedules.Constant
optimizer = optimizers.Adam(schedules.Constant(1e-3))  # the same as Adam(1e-3)

# blobnet.schedules.Cosine
optimizer = optimizers.Adam(schedules.Cosine(1e-3, warmup_epochs=1))

# blobnet.schedules.Step
optimizer = optimizers.SGD(schedules.Step(0.1, every_epochs=30, factor=0.1), momentum=0.9)

# blobnet.schedules.Linear
optimizer = optimizers.SGD(schedules.Linear(0.1, warmup_epochs=2), momentum=0.9, nesterov=True)

# blobnet.schedules.OneCycle
optimizer = optimizers.AdamW(schedules.OneCycle(5e-3))

# blobnet.schedules.Custom
optimizer = optimizers.Adam(schedules.Custom(lambda step: 1e-3 * 0.999**step))

# blobnet.augment.AlternatingFlip
changes = [augment.AlternatingFlip()]

# blobnet.augment.AugMix
changes = [augment.AugMix(severity=3)]  # model.fit(x, y, augment=changes), where x is of uint8

# blobnet.augment.Brightness
changes = [augment.Brightness(0.2)]  # model.fit(x, y, augment=changes)

# blobnet.augment.Contrast
changes = [augment.Contrast(0.2)]

# blobnet.augment.CutMix
changes = [augment.CutMix(1.0)]

# blobnet.augment.Erasing
changes = [augment.Erasing(0.5)]

# blobnet.augment.Flip
changes = [augment.Flip(), augment.Flip(horizontal=False, vertical=True)]

# blobnet.augment.Mixup
changes = [augment.Mixup(0.2)]

# blobnet.augment.RandAugment
changes = [augment.RandomCrop(2), augment.RandAugment(num_ops=2, magnitude=9)]

# blobnet.augment.RandomAffine
changes = [augment.RandomAffine(degrees=10, translate=0.1)]

# blobnet.augment.RandomCrop
changes = [augment.RandomCrop(2), augment.Flip()]

# blobnet.augment.RandomResizedCrop
changes = [augment.RandomResizedCrop(scale=(0.25, 1.0))]

# blobnet.augment.Saturation
changes = [augment.Saturation(0.2)]

# blobnet.augment.TrivialAugment
changes = [augment.RandomCrop(2), augment.Flip(), augment.TrivialAugment()]

# blobnet.callbacks.CSVLog
calls = [callbacks.CSVLog("epochs.csv")]  # model.fit(x, y, callbacks=calls)


# blobnet.callbacks.Callback
class Watch(callbacks.Callback):
    """Prints the best accuracy so far; give it to fit(callbacks=[Watch()])."""

    def epoch_end(self, progress):
        print("best so far:", max(progress.history["accuracy"]))


# blobnet.callbacks.Checkpoint
calls = [callbacks.Checkpoint("net.h5", every_steps=500)]

# blobnet.callbacks.EarlyStopping
calls = [callbacks.EarlyStopping(patience=5)]

# blobnet.callbacks.Live
calls = [callbacks.Live(port=8787)]

# blobnet.callbacks.ReduceOnPlateau
calls = [callbacks.ReduceOnPlateau(factor=0.5, patience=3)]

# blobnet.callbacks.SaveBest
calls = [callbacks.SaveBest("best.h5")]

# blobnet.callbacks.TensorBoard
calls = [callbacks.TensorBoard("runs/first")]


# blobnet.callbacks.MLflow
def tracked():
    """Return the callbacks of a run that MLflow keeps."""
    return [callbacks.MLflow("digits", uri="sqlite:///mlflow.db")]


# blobnet.callbacks.WandB
def logged():
    """Return the callbacks of a run that is sent later."""
    return [callbacks.WandB("digits", mode="offline")]


# blobnet.callbacks.OptunaPruning
def objective(trial):
    """Return the loss of a trial."""
    calls = [callbacks.OptunaPruning(trial)]
    rate = trial.suggest_float("rate", 1e-4, 1e-1, log=True)
    model.fit(x, y, epochs=5, validation=0.2, optimizer=bn.optimizers.Adam(rate), callbacks=calls)
    return model.history["validation_loss"][-1]


# blobnet.datasets.Dataset
data = bn.datasets.load("digits")
print(data, data.classes, data.class_names)
x, y = data.train.x, data.train.y

# blobnet.datasets.Split
fewer, held_out = bn.datasets.load("digits").train.split_validation(0.2, seed=0)

# blobnet.contraction.Function
product = bn.contraction.function("O[n, m] = +(A[n, k] * B[k, m])")

# blobnet.Model
node = layers.GlobalAveragePool()(features)  # (32,)
model = bn.Model(images, layers.Dense(10)(node))
model.predict(np.zeros((2, 3, 32, 32), np.float32))  # (2, 10)

# blobnet.Sequential
model = bn.Sequential([layers.Input(1, 28, 28), layers.Flatten(), layers.Dense(10)])
