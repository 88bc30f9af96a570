"""How far a judge can be trusted: labels, calibration, probes, anchors, and routing on judged quality."""

from __future__ import annotations
