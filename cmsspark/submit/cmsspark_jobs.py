"""Jobs of CMSSpark that are not built-in jobs here, with what does their work (``script_lines`` has the lines).

``docs/migration.md`` has the list with the shell scripts; a test compares both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: The script without ``.py`` → (a job or command of today, or several, and a word on it). An empty text: nothing.
SUCCESSORS: Final[Mapping[str, tuple[str, str]]] = {
    "aggregate_campaign_tier": ("event_counts", "events and bytes by month, data tier and campaign"),
    "aggregate_campaigns": ("event_counts", "events and bytes by month, data tier and campaign"),
    "aggregate_dbs": ("dbs_events", "by dataset; its column data_tier sums to tiers"),
    "aggregate_leftovers": ("leftovers", "orphan, invalid and missing datasets"),
    "aggregate_phedex": ("site_tier_usage", ""),
    "aso_stats": ("", ""),
    "avro2json": ("", ""),
    "cern_monit3": ("cern_monit", ""),
    "cmssw_avro2json": ("", ""),
    "condor_cpu_efficiency": ("job_efficiency", "CPU efficiency of HTCondor jobs"),
    "condor_crab_unique_users": ("crab_users", "distinct users of CRAB by week and month"),
    "condor_hs06coreHrPlot": ("job_efficiency", "core_hours has HS06 by site"),
    "cpueff_condor_goweb": ("job_efficiency", "and the page Efficiency of cmsspark dashboard"),
    "cpueff_stepchain_goweb": ("step_efficiency", "CPU efficiency of step chains"),
    "data_agg": ("data_aggregation", ""),
    "data_aggregation_plots": ("", ""),
    "data_collection": ("data_aggregation", ""),
    "dbs_adler": ("cmsspark sql --dumps", "files by checksum"),
    "dbs_block_lumis": ("cmsspark sql --dumps", "lumi sections of blocks"),
    "dbs_condor": ("dbs_condor", ""),
    "dbs_event_count_plot": ("crsg_event_counts", "then cmsspark report --pictures DIR --picture event_counts"),
    "dbs_hdfs_crab": ("crab_popularity", "datasets that CRAB jobs read"),
    "dbs_hdfs_eos": ("dbs_eos", "accesses on EOS by dataset"),
    "dbs_lfn": ("cmsspark sql --dumps", "files by name"),
    "dbs_spark": ("dbs_events", ""),
    "fts": ("", ""),
    "fts_aso": ("", ""),
    "getCSV": ("", ""),
    "hdfs_an": ("", ""),
    "hpc_at_cms": ("job_efficiency", "core_hours by HPC"),
    "hpc_running_cores_and_corehr": ("job_efficiency", "running_cores and core_hours by HPC"),
    "jm_stats": ("dbs_crab", ""),
    "mergePhedex": ("phedex", "each day is stored; cmsspark show phedex --path prints it for pandas or DuckDB"),
    "phedex_agg": ("phedex", ""),
    "report_builder": ("", ""),
    "rucio_all_datasets": ("dataset_last_access", ""),
    "rucio_all_detailed_datasets": ("dataset_last_access", ""),
    "rucio_daily": ("rucio_daily", ""),
    "rucio_datasets_daily_stats": ("rucio_daily", ""),
    "rucio_datasets_last_access_ts": ("dataset_last_access", ""),
    "rucio_datasets_monitoring": ("dataset_last_access", ""),
    "rucio_datasets_stats": ("rucio_daily", ""),
    "rucio_ds_mongo": ("dataset_last_access", ""),
    "rucio_ds_summary": ("dataset_last_access", ""),
    "stats": ("", ""),
    "stepchain_cpu_eff": ("step_efficiency", "CPU efficiency of step chains"),
    "visualize_campaigns": ("", ""),
    "visualize_leftovers": ("", ""),
    "visualize_tiers": ("", ""),
    "wma_agent_count_to_opensearch": ("step_efficiency", "its table agent_reports"),
    "wmarchive": ("", ""),
    "wmarchive_crab_file_access": ("", ""),
}
#: What ``cmsspark sql --dumps`` answers instead of a script.
DUMP_QUERIES: Final[Mapping[str, str]] = {
    "dbs_adler": "select logical_file_name, file_size from dbs.files where adler32 = '…'",
    "dbs_block_lumis": "select block_name, count(distinct (run_num, lumi_section_num)) as lumis from dbs.file_lumis"
    " join dbs.files using (file_id) join dbs.blocks using (block_id) group by 1",
    "dbs_lfn": "select logical_file_name from dbs.files where logical_file_name like '/store/data/%'",
}
