from .attention import attention_head as attention_head
from .attention import attention_montage as attention_montage
from .attention import head_scores as head_scores
from .attribution import attribution_bars as attribution_bars
from .attribution import attribution_heads as attribution_heads
from .attribution import attribution_positions as attribution_positions
from .comparison import comparison as comparison
from .dynamics import training_curves as training_curves
from .dynamics import training_map as training_map
from .layernorm import layernorm_steps as layernorm_steps
from .lens import LENS_MEASURES as LENS_MEASURES
from .lens import lens_followed as lens_followed
from .lens import lens_grid as lens_grid
from .lens import lens_path as lens_path
from .lens import lens_top as lens_top
from .neurons import neuron_activity as neuron_activity
from .neurons import neuron_bars as neuron_bars
from .neurons import neuron_histogram as neuron_histogram
from .neurons import neuron_windows as neuron_windows
from .neurons import prediction_change as prediction_change
from .opened import effect_bars as effect_bars
from .opened import neuron_parts as neuron_parts
from .opened import source_bars as source_bars
from .opened import source_map as source_map
from .patching import patching_estimate as patching_estimate
from .patching import patching_map as patching_map
from .paths import receiver_bars as receiver_bars
from .paths import sender_bars as sender_bars
from .prediction import next_token_bars as next_token_bars
from .prediction import token_losses as token_losses
from .report import training_report as training_report
from .sphere import sphere_ball as sphere_ball
from .sphere import sphere_hops as sphere_hops
from .sphere import sphere_radius as sphere_radius
from .sphere import update_split as update_split
from .timeline import change_points as change_points
from .weights import circuit_map as circuit_map
from .weights import composition_map as composition_map
from .weights import head_spectra as head_spectra
from .weights import pair_bars as pair_bars

__all__ = [
    "LENS_MEASURES",
    "attention_head",
    "attention_montage",
    "attribution_bars",
    "attribution_heads",
    "attribution_positions",
    "change_points",
    "circuit_map",
    "comparison",
    "composition_map",
    "effect_bars",
    "head_scores",
    "head_spectra",
    "layernorm_steps",
    "lens_followed",
    "lens_grid",
    "lens_path",
    "lens_top",
    "neuron_activity",
    "neuron_bars",
    "neuron_histogram",
    "neuron_parts",
    "neuron_windows",
    "next_token_bars",
    "pair_bars",
    "patching_estimate",
    "patching_map",
    "prediction_change",
    "receiver_bars",
    "sender_bars",
    "source_bars",
    "source_map",
    "sphere_ball",
    "sphere_hops",
    "sphere_radius",
    "token_losses",
    "training_curves",
    "training_map",
    "training_report",
    "update_split",
]
