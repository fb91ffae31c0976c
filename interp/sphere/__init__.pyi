from .ceiling import confidence_ceiling as confidence_ceiling
from .dimension import effective_dim as effective_dim
from .effects import ablation_effect as ablation_effect
from .effects import direct_effect as direct_effect
from .ellipsoid import gain_ellipsoid as gain_ellipsoid
from .frozen import frozen_scale_loss as frozen_scale_loss
from .frozen import scale_jitter as scale_jitter
from .growth import norm_growth as norm_growth
from .jacobian import layernorm_gains as layernorm_gains
from .neuron_split import neuron_split as neuron_split
from .path import sphere_path as sphere_path
from .queries import query_uniformity as query_uniformity
from .radius import eps_regime as eps_regime
from .radius import sphere_radius as sphere_radius
from .selection import key_selectability as key_selectability
from .selection import token_reachable as token_reachable
from .split import update_split as update_split
from .steps import layernorm_steps as layernorm_steps
from .unembedding import null_writers as null_writers
from .unembedding import unembed_cosines as unembed_cosines
from .unembedding import unembed_geometry as unembed_geometry
from .view import sphere_view as sphere_view

__all__ = [
    "ablation_effect",
    "confidence_ceiling",
    "direct_effect",
    "effective_dim",
    "eps_regime",
    "frozen_scale_loss",
    "gain_ellipsoid",
    "key_selectability",
    "layernorm_gains",
    "layernorm_steps",
    "neuron_split",
    "norm_growth",
    "null_writers",
    "query_uniformity",
    "scale_jitter",
    "sphere_path",
    "sphere_radius",
    "sphere_view",
    "token_reachable",
    "unembed_cosines",
    "unembed_geometry",
    "update_split",
]
