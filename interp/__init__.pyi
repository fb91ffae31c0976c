from .attention import attention_patterns as attention_patterns
from .attention import head_scores as head_scores
from .attention import induction_scores as induction_scores
from .errors import InputError as InputError
from .residual import direct_logit_attribution as direct_logit_attribution
from .residual import logit_lens as logit_lens
from .sphere import eps_regime as eps_regime
from .sphere import sphere_path as sphere_path
from .sphere import sphere_radius as sphere_radius
from .sphere import sphere_view as sphere_view
from .sphere import update_split as update_split

__all__ = [
    "InputError",
    "attention_patterns",
    "direct_logit_attribution",
    "eps_regime",
    "head_scores",
    "induction_scores",
    "logit_lens",
    "sphere_path",
    "sphere_radius",
    "sphere_view",
    "update_split",
]
