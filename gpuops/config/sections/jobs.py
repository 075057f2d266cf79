"""The section of a policy about jobs in containers."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, Field, field_validator, model_validator

from gpuops.config.jobs_file import read_guest_path
from gpuops.config.sections.section import Section, Text, mistake
from gpuops.model.nights.ml_queue import QueuedVm, is_pattern
from gpuops.model.workloads.job_rules import JobQuota, JobRules, JobTemplate

_Number = Annotated[int, Field(ge=0, le=100_000)]


class JobQuotaSection(Section):
    """What one owner may have at the most."""

    waiting: _Number | None = None
    running: _Number | None = None
    profiles: Annotated[list[Text], Field(min_length=1, max_length=100)] = Field(default_factory=lambda: ["*"])

    submitters: Annotated[list[Text], Field(min_length=1, max_length=1000)] | None = None

    def quota(self) -> JobQuota:
        return JobQuota(self.waiting, self.running, tuple(self.profiles), tuple(self.submitters or ()))


class TemplateSection(Section):
    """Of which template VMs are made for jobs that no other VM fits."""

    name: Text
    at_most: int = Field(ge=1, le=99)
    prefix: str = Field(default="gpuops-job-", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,60}$")
    keep: bool = False

    def template(self) -> JobTemplate:
        return JobTemplate(self.name, self.at_most, self.prefix, self.keep)


class JobsSection(Section):
    """How nights run jobs."""

    vms: list[Text] = Field(default_factory=list, max_length=1000)
    template: TemplateSection | None = None
    priority: int = Field(default=0, ge=-1000, le=1000)
    relocate: bool = False
    mounts: list[Annotated[Text, AfterValidator(read_guest_path)]] = Field(default_factory=list, max_length=100)
    checkpoint_s: int = Field(default=300, ge=10, le=3600)
    minimum_run_minutes: int = Field(default=15, ge=0, le=24 * 60)
    quotas: dict[Text, JobQuotaSection] = Field(default_factory=dict, max_length=1000)

    @field_validator("vms")
    @classmethod
    def _not_every_vm(cls, vms: list[str]) -> list[str]:
        for name in vms:
            if is_pattern(name) and not name.strip("*?"):
                raise mistake(f"{name!r} would start every VM", "name what they have in common: `job-*`")
        return vms

    @model_validator(mode="after")
    def _some_vms(self) -> JobsSection:
        if not self.vms and self.template is None:
            raise mistake("no VM runs jobs", "say `vms`, or a `template` of which they are made")
        return self

    def _names(self) -> tuple[str, ...]:
        """Those that are said, and those of the VMs that are made."""
        made = () if self.template is None else (self.template.template().pattern,)
        return tuple(dict.fromkeys((*self.vms, *made)))

    def rules(self) -> JobRules:
        return JobRules(
            self._names(),
            tuple(self.mounts),
            {owner: section.quota() for owner, section in self.quotas.items()},
            timedelta(seconds=self.checkpoint_s),
            timedelta(minutes=self.minimum_run_minutes),
            self.template.template() if self.template is not None else None,
        )

    def queued(self) -> QueuedVm:
        """The entry by which a return knows these VMs; by itself it starts none of them."""
        name, *others = self._names()
        return QueuedVm(
            name,
            self.relocate,
            others=tuple(others),
            priority=self.priority,
            minimum_run=timedelta(minutes=self.minimum_run_minutes),
            for_jobs=True,
        )
