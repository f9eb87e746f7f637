from .client import client_app as client_app
from .identity import Roster as Roster
from .limits import RoundLimits as RoundLimits
from .loopback import Loopback as Loopback
from .meters import FromCommand as FromCommand, FromFile as FromFile, PowerSupply as PowerSupply
from .mod import EnergyMod as EnergyMod
from .remote import remote_run as remote_run
from .server import server_app as server_app
from .sources import Measured as Measured, Simulated as Simulated
from .strategy import EnergyStrategy as EnergyStrategy
