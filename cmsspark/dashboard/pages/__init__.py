"""The pages of the dashboard, one module each; ``cmsspark.dashboard.registry`` names them."""
