from .path import sphere_path as sphere_path
from .radius import eps_regime as eps_regime
from .radius import sphere_radius as sphere_radius
from .split import update_split as update_split
from .view import sphere_view as sphere_view

__all__ = [
    "eps_regime",
    "sphere_path",
    "sphere_radius",
    "sphere_view",
    "update_split",
]
