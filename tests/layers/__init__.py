"""Every layer against the contract (layer_contract.py)."""
