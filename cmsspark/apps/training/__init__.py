"""The launcher of trainings: ``cmsspark lab train`` starts a script on workers here, on
Spark or on Kubernetes.
"""
