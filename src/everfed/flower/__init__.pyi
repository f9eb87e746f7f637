from .client import EnergyMod as EnergyMod, client_app as client_app
from .energy import Measured as Measured, Simulated as Simulated
from .identity import Roster as Roster
from .limits import RoundLimits as RoundLimits
from .meters import FromCommand as FromCommand, FromFile as FromFile, PowerSupply as PowerSupply
from .server import remote_run as remote_run, server_app as server_app
from .strategy import EnergyStrategy as EnergyStrategy
from .testing import Loopback as Loopback
