from .change_points import change_points as change_points
from .change_points import lead as lead
from .change_points import lowest_points as lowest_points
from .curves import TRACKS as TRACKS
from .curves import training_curves as training_curves
from .llc import local_learning_coefficient as local_learning_coefficient
from .material import Material as Material
from .material import training_material as training_material
from .measures import track_training as track_training
from .measures import training_measures as training_measures
from .store import read_results as read_results
from .store import write_results as write_results
from .streaming import Series as Series
from .streaming import through_training as through_training

__all__ = [
    "TRACKS",
    "Material",
    "Series",
    "change_points",
    "lead",
    "local_learning_coefficient",
    "lowest_points",
    "read_results",
    "through_training",
    "track_training",
    "training_curves",
    "training_material",
    "training_measures",
    "write_results",
]
