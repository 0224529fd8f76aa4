# SPDX-License-Identifier: Apache-2.0
"""Commands whose options and checks fill a module of their own.

Stands on all that lies below; `cli` puts the commands together.
"""
