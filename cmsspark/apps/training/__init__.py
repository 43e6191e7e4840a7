"""The launcher of trainings: ``cmsspark train`` starts a script on workers of this host, of Spark or of Kubernetes."""
