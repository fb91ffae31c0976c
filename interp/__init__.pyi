from .attention import attention_patterns as attention_patterns
from .attention import head_scores as head_scores
from .attention import induction_scores as induction_scores
from .engine import Trace as Trace
from .engine import trace as trace
from .errors import InputError as InputError
from .inputs import Contrast as Contrast
from .inputs import contrast as contrast
from .inputs import to_ids as to_ids
from .metrics import Metric as Metric
from .metrics import cross_entropy as cross_entropy
from .metrics import kl_divergence as kl_divergence
from .metrics import log_prob as log_prob
from .metrics import logit_difference as logit_difference
from .metrics import probability as probability
from .metrics import rank as rank
from .patching import activation_patching as activation_patching
from .replay import replay as replay
from .residual import direct_logit_attribution as direct_logit_attribution
from .residual import logit_lens as logit_lens
from .sites import Site as Site
from .sites import sites_of as sites_of
from .sphere import eps_regime as eps_regime
from .sphere import sphere_path as sphere_path
from .sphere import sphere_radius as sphere_radius
from .sphere import sphere_view as sphere_view
from .sphere import update_split as update_split

__all__ = [
    "Contrast",
    "InputError",
    "Metric",
    "Site",
    "Trace",
    "activation_patching",
    "attention_patterns",
    "contrast",
    "cross_entropy",
    "direct_logit_attribution",
    "eps_regime",
    "head_scores",
    "induction_scores",
    "kl_divergence",
    "log_prob",
    "logit_difference",
    "logit_lens",
    "probability",
    "rank",
    "replay",
    "sites_of",
    "sphere_path",
    "sphere_radius",
    "sphere_view",
    "to_ids",
    "trace",
    "update_split",
]
