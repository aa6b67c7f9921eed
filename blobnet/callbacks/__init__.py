"""Callbacks: what may happen between the epochs, and the steps, of a training."""

from blobnet.callbacks.base import Callback
from blobnet.callbacks.checkpoint import Checkpoint
from blobnet.callbacks.csv_log import CSVLog
from blobnet.callbacks.early_stopping import EarlyStopping
from blobnet.callbacks.live import Live
from blobnet.callbacks.mlflow_log import MLflow
from blobnet.callbacks.optuna_pruning import OptunaPruning
from blobnet.callbacks.reduce_on_plateau import ReduceOnPlateau
from blobnet.callbacks.save_best import SaveBest
from blobnet.callbacks.tensorboard import TensorBoard
from blobnet.callbacks.wandb_log import WandB

__all__ = [
    "CSVLog",
    "Callback",
    "Checkpoint",
    "EarlyStopping",
    "Live",
    "MLflow",
    "OptunaPruning",
    "ReduceOnPlateau",
    "SaveBest",
    "TensorBoard",
    "WandB",
]
