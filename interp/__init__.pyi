from .ablation import ablation as ablation
from .attention import attention_patterns as attention_patterns
from .attention import head_scores as head_scores
from .attention import induction_scores as induction_scores
from .attribution import attribution_patching as attribution_patching
from .circuits import circuit_spectra as circuit_spectra
from .circuits import circuit_table as circuit_table
from .circuits import copying_scores as copying_scores
from .circuits import direct_path as direct_path
from .circuits import ov_circuit as ov_circuit
from .circuits import qk_circuit as qk_circuit
from .clusters import cluster_heads as cluster_heads
from .comparison import compare as compare
from .composition import composition_scores as composition_scores
from .direct import accumulated_contributions as accumulated_contributions
from .direct import neuron_attribution as neuron_attribution
from .direct import source_attribution as source_attribution
from .discovery import circuit_curve as circuit_curve
from .discovery import minimality as minimality
from .discovery import prune_edges as prune_edges
from .dynamics import change_points as change_points
from .dynamics import lead as lead
from .dynamics import local_learning_coefficient as local_learning_coefficient
from .dynamics import lowest_points as lowest_points
from .dynamics import read_results as read_results
from .dynamics import through_training as through_training
from .dynamics import track_training as track_training
from .dynamics import training_curves as training_curves
from .dynamics import training_material as training_material
from .dynamics import training_measures as training_measures
from .dynamics import write_results as write_results
from .edges import edge_attribution as edge_attribution
from .engine import Trace as Trace
from .engine import trace as trace
from .errors import InputError as InputError
from .heads import copy_suppression as copy_suppression
from .heads import edit_pattern as edit_pattern
from .heads import head_scores_over as head_scores_over
from .heads import moved_by_heads as moved_by_heads
from .inputs import Contrast as Contrast
from .inputs import contrast as contrast
from .inputs import to_id as to_id
from .inputs import to_ids as to_ids
from .inputs import token_strings as token_strings
from .inputs import vocabulary as vocabulary
from .metrics import Metric as Metric
from .metrics import cross_entropy as cross_entropy
from .metrics import kl_divergence as kl_divergence
from .metrics import log_prob as log_prob
from .metrics import logit_difference as logit_difference
from .metrics import probability as probability
from .metrics import rank as rank
from .neuron_effects import neuron_ablation as neuron_ablation
from .neuron_effects import neuron_activation as neuron_activation
from .neuron_effects import top_neurons as top_neurons
from .neurons import neuron_examples as neuron_examples
from .neurons import neuron_statistics as neuron_statistics
from .neurons import neuron_vocabulary as neuron_vocabulary
from .ngrams import NGrams as NGrams
from .ngrams import count_ngrams as count_ngrams
from .pairs import pair_places as pair_places
from .patching import activation_patching as activation_patching
from .paths import path_patching as path_patching
from .position_token import effective_context as effective_context
from .position_token import position_token_split as position_token_split
from .prediction import continuation as continuation
from .prediction import next_token as next_token
from .prediction import token_losses as token_losses
from .progress import progress_bar as progress_bar
from .replay import replay as replay
from .residual import direct_logit_attribution as direct_logit_attribution
from .residual import logit_lens as logit_lens
from .score_split import score_split as score_split
from .sites import SITE_KINDS as SITE_KINDS
from .sites import Site as Site
from .sites import sites_of as sites_of
from .sphere import ablation_effect as ablation_effect
from .sphere import confidence_ceiling as confidence_ceiling
from .sphere import direct_effect as direct_effect
from .sphere import effective_dim as effective_dim
from .sphere import eps_regime as eps_regime
from .sphere import frozen_scale_loss as frozen_scale_loss
from .sphere import gain_ellipsoid as gain_ellipsoid
from .sphere import key_selectability as key_selectability
from .sphere import layernorm_gains as layernorm_gains
from .sphere import layernorm_steps as layernorm_steps
from .sphere import neuron_split as neuron_split
from .sphere import norm_growth as norm_growth
from .sphere import null_writers as null_writers
from .sphere import query_uniformity as query_uniformity
from .sphere import scale_jitter as scale_jitter
from .sphere import sphere_path as sphere_path
from .sphere import sphere_radius as sphere_radius
from .sphere import sphere_view as sphere_view
from .sphere import token_reachable as token_reachable
from .sphere import unembed_cosines as unembed_cosines
from .sphere import unembed_geometry as unembed_geometry
from .sphere import update_split as update_split
from .text_statistics import direct_path_against_bigram as direct_path_against_bigram
from .text_statistics import loss_by_position as loss_by_position
from .text_statistics import ngram_comparison as ngram_comparison
from .text_statistics import repeated_block_loss as repeated_block_loss
from .tuned_lens import Translators as Translators
from .tuned_lens import fit_tuned_lens as fit_tuned_lens
from .tuned_lens import tuned_lens as tuned_lens

__all__ = [
    "SITE_KINDS",
    "Contrast",
    "InputError",
    "Metric",
    "NGrams",
    "Site",
    "Trace",
    "Translators",
    "ablation",
    "ablation_effect",
    "accumulated_contributions",
    "activation_patching",
    "attention_patterns",
    "attribution_patching",
    "change_points",
    "circuit_curve",
    "circuit_spectra",
    "circuit_table",
    "cluster_heads",
    "compare",
    "composition_scores",
    "confidence_ceiling",
    "continuation",
    "contrast",
    "copy_suppression",
    "copying_scores",
    "count_ngrams",
    "cross_entropy",
    "direct_effect",
    "direct_logit_attribution",
    "direct_path",
    "direct_path_against_bigram",
    "edge_attribution",
    "edit_pattern",
    "effective_context",
    "effective_dim",
    "eps_regime",
    "fit_tuned_lens",
    "frozen_scale_loss",
    "gain_ellipsoid",
    "head_scores",
    "head_scores_over",
    "induction_scores",
    "key_selectability",
    "kl_divergence",
    "layernorm_gains",
    "layernorm_steps",
    "lead",
    "local_learning_coefficient",
    "log_prob",
    "logit_difference",
    "logit_lens",
    "loss_by_position",
    "lowest_points",
    "minimality",
    "moved_by_heads",
    "neuron_ablation",
    "neuron_activation",
    "neuron_attribution",
    "neuron_examples",
    "neuron_split",
    "neuron_statistics",
    "neuron_vocabulary",
    "next_token",
    "ngram_comparison",
    "norm_growth",
    "null_writers",
    "ov_circuit",
    "pair_places",
    "path_patching",
    "position_token_split",
    "probability",
    "progress_bar",
    "prune_edges",
    "qk_circuit",
    "query_uniformity",
    "rank",
    "read_results",
    "repeated_block_loss",
    "replay",
    "scale_jitter",
    "score_split",
    "sites_of",
    "source_attribution",
    "sphere_path",
    "sphere_radius",
    "sphere_view",
    "through_training",
    "to_id",
    "to_ids",
    "token_losses",
    "token_reachable",
    "token_strings",
    "top_neurons",
    "trace",
    "track_training",
    "training_curves",
    "training_material",
    "training_measures",
    "tuned_lens",
    "unembed_cosines",
    "unembed_geometry",
    "update_split",
    "vocabulary",
    "write_results",
]
