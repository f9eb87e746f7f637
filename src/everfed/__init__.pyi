# Every public name and the module it lives in. `__init__.py` loads them from here when they are first used.
from . import theory as theory
from .advising.advice import Advice as Advice
from .advising.advise import advise as advise
from .advising.expected import Expected as Expected, expect as expect
from .advising.outlook import Outlook as Outlook, outlook as outlook
from .api import compare as compare, simulate as simulate, start as start, sweep as sweep
from .auditing.asynchronous import AsynchronousAudit as AsynchronousAudit
from .auditing.audit import Audit as Audit, audit as audit
from .data.augment import AUGMENTS as AUGMENTS
from .data.datasets import DATASETS as DATASETS, load as load
from .data.federated import FederatedData as FederatedData, from_arrays as from_arrays
from .data.on_demand import OnDemand as OnDemand
from .data.partition import SPLITS as SPLITS
from .energy.arrivals import ARRIVALS as ARRIVALS
from .energy.battery import Books as Books
from .energy.fleet import Fleet as Fleet
from .energy.work import Work as Work
from .errors import (
    DivergenceError as DivergenceError,
    EverfedWarning as EverfedWarning,
    InputError as InputError,
    MissingExtraError as MissingExtraError,
)
from .learning.gradients import GRADIENT_RULES as GRADIENT_RULES, Clip as Clip, Proximal as Proximal
from .learning.measures import METRICS as METRICS
from .learning.metrics import Metrics as Metrics
from .learning.models import MODELS as MODELS, build as build
from .learning.optim import (
    OPTIMIZERS as OPTIMIZERS,
    SCHEDULES as SCHEDULES,
    SGD as SGD,
    Adam as Adam,
    Constant as Constant,
    Cosine as Cosine,
    InverseTime as InverseTime,
)
from .methods import METHODS as METHODS, Method as Method, plan as plan
from .registry import register as register
from .report.advice_page import advice_page as advice_page
from .report.compared import Comparison as Comparison, compare_runs as compare_runs
from .run.early_stopping import EarlyStopping as EarlyStopping
from .run.experiment import Experiment as Experiment
from .run.history import History as History, RoundRecord as RoundRecord
from .run.loop import Run as Run
from .scheduling.lattice import Lattice as Lattice
from .scheduling.plan import PlanStep as PlanStep
from .scheduling.planned import Plan as Plan
from .scheduling.policies import (
    Always as Always,
    Bernoulli as Bernoulli,
    Greedy as Greedy,
    Policy as Policy,
    UniformWindow as UniformWindow,
    WaitForAll as WaitForAll,
)
from .scheduling.table import POLICIES as POLICIES
from .server.arrivals import (
    Area as Area,
    FedAsync as FedAsync,
    FedBuff as FedBuff,
    Renewal as Renewal,
    RenewalDiscounted as RenewalDiscounted,
)
from .server.control import HTScaffold as HTScaffold, Scaffold as Scaffold
from .server.experience import Echo as Echo, FedAU as FedAU
from .server.gossip import FedAWE as FedAWE
from .server.last_updates import FedVarp as FedVarp, LastUpdates as LastUpdates, Mifa as Mifa, Varp as Varp
from .server.optimizers import (
    SERVER_OPTIMIZERS as SERVER_OPTIMIZERS,
    ServerAdaGrad as ServerAdaGrad,
    ServerAdam as ServerAdam,
    ServerMomentum as ServerMomentum,
    ServerSGD as ServerSGD,
    ServerYogi as ServerYogi,
)
from .server.rules import Normalized as Normalized, Sum as Sum, Truncated as Truncated
from .server.table import SERVER_RULES as SERVER_RULES
from .store import (
    StoredRun as StoredRun,
    export_model as export_model,
    open_run as open_run,
    stored_rounds as stored_rounds,
)
from .studies.seed_variance import seed_effects as seed_effects
from .studies.tuning import tune as tune
from .trainers.choose import TRAINERS as TRAINERS

__version__: str
