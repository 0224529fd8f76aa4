"""The tool behind `build/build.py`; see docs/architecture.md."""
