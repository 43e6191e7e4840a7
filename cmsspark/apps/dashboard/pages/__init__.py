"""The pages of the dashboard, one module each; ``cmsspark.apps.dashboard.registry`` names them."""
