"""Files on local disks, HDFS and object stores, behind the same functions."""
