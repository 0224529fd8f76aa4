# SPDX-License-Identifier: Apache-2.0
"""The tool behind `build/build.py`; see docs/architecture.md."""
