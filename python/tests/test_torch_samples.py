"""Samples that are counted once by elastic trainings of PyTorch, whose members are killed."""

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import samples_storm  # noqa: E402


def test_an_elastic_training_counts_each_sample_once_whoever_is_killed():
    assert samples_storm.storm("elastic", kills=2, members=3, length=3000, epochs=2, every_s=4, limit_s=300) > 0
