from .attention import attention_head as attention_head
from .attention import attention_montage as attention_montage
from .attention import head_scores as head_scores
from .attribution import attribution_bars as attribution_bars
from .attribution import attribution_heads as attribution_heads
from .attribution import attribution_positions as attribution_positions
from .lens import LENS_MEASURES as LENS_MEASURES
from .lens import lens_grid as lens_grid
from .lens import lens_path as lens_path
from .lens import lens_top as lens_top
from .patching import patching_estimate as patching_estimate
from .patching import patching_map as patching_map
from .sphere import sphere_ball as sphere_ball
from .sphere import sphere_hops as sphere_hops
from .sphere import sphere_radius as sphere_radius
from .sphere import update_split as update_split

__all__ = [
    "LENS_MEASURES",
    "attention_head",
    "attention_montage",
    "attribution_bars",
    "attribution_heads",
    "attribution_positions",
    "head_scores",
    "lens_grid",
    "lens_path",
    "lens_top",
    "patching_estimate",
    "patching_map",
    "sphere_ball",
    "sphere_hops",
    "sphere_radius",
    "update_split",
]
