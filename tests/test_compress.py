"""Compressed updates: unbiased, as noisy as stated, cheaper, and chosen by each device for its energy."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch

import everfed as ef
from everfed.energy.physical import DeviceFleet, DeviceGroup
from everfed.learning.compress import COMPRESSORS, FULL, AdaptiveQsgd, Qsgd, RandK, Whole, compress_all
from everfed.learning.task import PlainTrained
from everfed.run import config

EVERY = [Whole(), Qsgd(bits=2), Qsgd(bits=4, bucket=64), Qsgd(bits=8), AdaptiveQsgd(), RandK(0.25), RandK(1.0)]
over = pytest.mark.parametrize("how", EVERY, ids=repr)


def draws(how, x, bits, times=2000):
    """`times` messages of the same updates, in as many rounds."""
    who = torch.arange(len(x))
    return torch.stack([how.compress(x.clone(), bits, who, r, 7) for r in range(times)])


def bits_of(how, count):
    return torch.full((count,), how.choices()[0])


class TestEveryCompressor:
    @over
    def test_is_unbiased_and_no_noisier_than_stated(self, how):
        x = torch.randn(2, 700, generator=torch.Generator().manual_seed(1))
        bits = bits_of(how, 2)
        read = draws(how, x, bits)
        noise = ((read - x) ** 2).sum(dim=(1, 2)).mean() / (x**2).sum()
        stated = how.noise(int(bits[0]))
        assert noise <= stated * 1.02 + 1e-9
        # The mean of 2,000 draws strays by a 45th of one draw's spread.
        assert (read.mean(dim=0) - x).norm() / x.norm() < 3 * math.sqrt(max(stated, 1e-9) / 2000) + 1e-6

    @over
    def test_a_message_depends_on_seed_client_and_round_alone(self, how):
        x = torch.randn(3, 100, generator=torch.Generator().manual_seed(2))
        bits = bits_of(how, 3)
        together = how.compress(x.clone(), bits, torch.tensor([4, 7, 9]), 5, 11)
        alone = how.compress(x[1:2].clone(), bits[1:2], torch.tensor([7]), 5, 11)
        torch.testing.assert_close(together[1:2], alone, rtol=0, atol=0)

    @over
    def test_what_is_not_finite_stays_so(self, how):
        x = torch.zeros(1, 600)
        x[0, 599] = math.nan
        read = how.compress(x, bits_of(how, 1), torch.tensor([0]), 0, 0)
        assert not torch.isfinite(read).all()

    @over
    def test_zeros_stay_zeros(self, how):
        assert not how.compress(torch.zeros(2, 33), bits_of(how, 2), torch.tensor([0, 1]), 0, 0).any()


def test_every_row_of_the_table_is_tried():
    assert {type(how) for how in EVERY} == set(COMPRESSORS.values())


def test_rand_k_noise_is_exactly_one_over_keep_minus_one():
    x = torch.ones(1, 1000)
    read = draws(RandK(0.2), x, torch.tensor([FULL]), 400)
    assert ((read - x) ** 2).sum(dim=2).mean() / 1000 == pytest.approx(4.0, rel=0.02)
    assert set(read.unique().tolist()) == {0.0, 5.0}


def test_qsgd_by_hand():
    # A bucket (3, 4) has length 5. With 3 bits there are 3 levels: 3/5 * 3 = 1.8 and 4/5 * 3 = 2.4.
    read = draws(Qsgd(bits=3, bucket=2), torch.tensor([[3.0, -4.0]]), torch.tensor([3]), 4000)[:, 0]
    first, second = read[:, 0], read[:, 1]
    assert first.unique().tolist() == pytest.approx([5 / 3, 10 / 3])
    assert second.unique().tolist() == pytest.approx([-5.0, -10 / 3])
    assert (first > 3).float().mean() == pytest.approx(0.8, abs=0.02)
    assert (second < -4).float().mean() == pytest.approx(0.4, abs=0.025)


def test_noise_and_size_of_eight_bits_in_buckets_of_512():
    assert Qsgd(bits=8).noise(8) == pytest.approx(512 / 127**2)
    assert Qsgd(bits=8).size_ratio(8) == pytest.approx(0.25 + 1 / 512)
    assert Qsgd(bits=2).noise(2) == pytest.approx(math.sqrt(512))  # the other side of the minimum
    assert AdaptiveQsgd().noise(FULL) == 0.0
    assert AdaptiveQsgd().size_ratio(FULL) == 1.0


def test_each_client_gets_its_own_bits():
    x = torch.randn(3, 512, generator=torch.Generator().manual_seed(3))
    results = PlainTrained(np.array([2, 0, 1]), x.clone(), torch.zeros(3))
    read = compress_all(results, AdaptiveQsgd(), np.array([2, 8, FULL]), round=0, seed=0)
    assert torch.equal(read.deltas[0], x[0])  # client 2 sends all of it
    coarse, fine = read.deltas[1], read.deltas[2]  # client 0 with 2 bits, client 1 with 8
    assert len(coarse.abs().unique()) <= 2
    assert (fine - x[2]).norm() / x[2].norm() < math.sqrt(512 / 127**2)


class TestTheBestBits:
    """Each device takes the bits with the least E(b) (1 + noise(b))."""

    GROUP = DeviceGroup(count=3, radio="lora-sf7", panel_wp=0.0009, battery_wh=100.0, switched_off=True)
    # Long enough that the whole model may be sent within LoRa's duty cycle: 1,651 s on air.
    LORA: ClassVar = {"model_mb": 1.0, "round_s": 172_800.0}

    def test_of_a_fleet_are_the_best_of_all_that_are_offered(self):
        fleet, how = DeviceFleet((replace(self.GROUP, spread=0.3),), **self.LORA), AdaptiveQsgd()
        built = fleet.build(5, how)
        cycles = {b: fleet.build(5, Fixed(how, b)).cycles() for b in how.choices()}
        worth = {b: cycles[b] * (1.0 + how.noise(b)) for b in cycles}
        for client, bits in enumerate(built.message_bits.tolist()):
            assert built.cycles()[client] == cycles[bits][client]
            assert worth[bits][client] == min(w[client] for w in worth.values())

    def test_are_few_where_the_radio_is_dear_and_all_where_it_is_not(self):
        how = AdaptiveQsgd()
        lora = DeviceFleet((self.GROUP,), **self.LORA)
        assert lora.build(5).cycles().tolist() == [12, 12, 12]
        chosen = lora.build(5, how)
        assert chosen.message_bits.tolist() == [8, 8, 8]
        assert chosen.cycles().tolist() == [6, 6, 6]
        wifi = DeviceFleet((replace(self.GROUP, radio="wifi"),), model_mb=0.02)
        assert wifi.build(5, how).message_bits.tolist() == [FULL] * 3

    def test_what_is_sent_is_paid_for(self):
        whole = DeviceFleet((self.GROUP,), **self.LORA)
        fixed = whole.build(5, Qsgd(bits=8))
        saved_j = (whole.build(5).unit_j - fixed.unit_j) * self.GROUP.discharging
        assert saved_j == pytest.approx(158.0 * (1 - 0.25 - 1 / 512))

    @pytest.mark.parametrize("ratio", [0.1, 1.0, 10.0])
    def test_sparser_is_never_better(self, ratio):
        """Of rand-k, without the rounding of cycles: e(f) (1 + noise(f)) = compute / f + sending, least at f = 1."""
        worth = [
            (1.0 + ratio * RandK(f).size_ratio(FULL)) * (1.0 + RandK(f).noise(FULL)) for f in np.linspace(0.02, 1.0, 50)
        ]
        assert int(np.argmin(worth)) == 49
        assert np.all(np.diff(worth) < 0.0)

    @pytest.mark.parametrize(("ratio", "pays"), [(0.1, False), (1.0, True), (10.0, True)])
    def test_eight_bits_pay_unless_computing_dominates(self, ratio, pays):
        def worth(how, bits):
            return (1.0 + ratio * how.size_ratio(bits)) * (1.0 + how.noise(bits))

        gain = worth(Whole(), FULL) / worth(Qsgd(bits=8), 8)
        assert (gain > 1.05) == pays


class Fixed:
    """A compressor that offers one of another's choices."""

    def __init__(self, how, bits):
        self.size_ratio, self.noise, self.bits = how.size_ratio, how.noise, bits

    def choices(self):
        return (self.bits,)


def test_a_run_with_eight_bits_learns_and_repeats_itself():
    fleet = ef.Fleet.from_cycles([1, 2, 4, 4])
    data = ef.load("digits").partition(clients=4, how="iid", seed=0)
    kwargs = {"rounds": 40, "client": ef.SGD(0.2), "compression": Qsgd(bits=8), "eval_every": 40}
    one, again = (ef.simulate("mlp", data, fleet, **kwargs) for _ in range(2))
    whole = ef.simulate("mlp", data, fleet, **{**kwargs, "compression": Whole()})
    assert all(torch.equal(one.params[name], again.params[name]) for name in one.params)
    assert not all(torch.equal(one.params[name], whole.params[name]) for name in one.params)
    assert one.final.accuracy > whole.final.accuracy - 0.05 > 0.75


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"compression": {"kind": "qsgd", "bits": 1}}, "2 to 16"),
        ({"compression": {"kind": "qsgd", "bucket": 0}}, "bucket is 0; it must be a whole number of at least 1"),
        ({"compression": {"kind": "rand-k", "keep": 0.0}}, "above 0"),
        ({"compression": "qsdg"}, "Did you mean 'qsgd'"),
    ],
)
def test_bad_settings_are_refused(raw, words):
    with pytest.raises(ef.InputError, match=words):
        config.from_dict(raw)


def test_choosing_bits_needs_energy_in_joules():
    with pytest.raises(ef.InputError, match="fleet of devices"):
        config.from_dict({"compression": "adaptive-qsgd"}).make_fleet()
