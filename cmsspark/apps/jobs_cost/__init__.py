"""What jobs cost: CPU efficiency, core hours and running cores of HTCondor; steps and
agents of WMArchive.
"""
