BEGIN TRANSACTION;
CREATE TABLE intents (
	op_id VARCHAR NOT NULL, 
	run VARCHAR NOT NULL, 
	seq INTEGER NOT NULL, 
	vm VARCHAR NOT NULL, 
	kind VARCHAR NOT NULL, 
	step VARCHAR NOT NULL, 
	"before" VARCHAR NOT NULL, 
	state VARCHAR NOT NULL, 
	task VARCHAR, 
	reason VARCHAR NOT NULL, 
	seen VARCHAR NOT NULL, 
	intended VARCHAR NOT NULL, 
	ended VARCHAR, 
	duration_s FLOAT, 
	PRIMARY KEY (op_id), 
	FOREIGN KEY(run) REFERENCES runs (id)
);
INSERT INTO "intents" VALUES('gpuops-c08bf1cdb584-1','c08bf1cdb584',1,'vm-1','SetAttribute','{"SetAttribute":{"vm":"vm-1","name":"gpuops.rotation","value":"2026-11-20 desktop"}}','{"host": "host-1", "power": "poweredOn", "profiles": ["nvidia_a40-24q"], "name": "desktop-01"}','done',NULL,'','2026-11-20T21:00:04+00:00','2026-11-20T21:00:05+00:00','2026-11-20T21:00:06+00:00',NULL);
INSERT INTO "intents" VALUES('gpuops-c08bf1cdb584-2','c08bf1cdb584',2,'vm-2','SetAttribute','{"SetAttribute":{"vm":"vm-2","name":"gpuops.rotation","value":"2026-11-20 desktop"}}','{"host": "host-1", "power": "poweredOn", "profiles": ["nvidia_a40-24q"], "name": "desktop-02"}','done',NULL,'','2026-11-20T21:00:05+00:00','2026-11-20T21:00:07+00:00','2026-11-20T21:00:08+00:00',NULL);
INSERT INTO "intents" VALUES('gpuops-c08bf1cdb584-3','c08bf1cdb584',3,'vm-91','SetAttribute','{"SetAttribute":{"vm":"vm-91","name":"gpuops.rotation","value":"2026-11-20 ml"}}','{"host": "host-1", "power": "poweredOff", "profiles": ["nvidia_a40-48c"], "name": "ml-01"}','done',NULL,'','2026-11-20T21:00:08+00:00','2026-11-20T21:00:09+00:00','2026-11-20T21:00:10+00:00',NULL);
INSERT INTO "intents" VALUES('gpuops-c08bf1cdb584-4','c08bf1cdb584',4,'vm-92','SetAttribute','{"SetAttribute":{"vm":"vm-92","name":"gpuops.rotation","value":"2026-11-20 ml"}}','{"host": "host-2", "power": "poweredOff", "profiles": ["nvidia_a40-48c"], "name": "ml-02"}','done',NULL,'','2026-11-20T21:00:09+00:00','2026-11-20T21:00:11+00:00','2026-11-20T21:00:12+00:00',NULL);
INSERT INTO "intents" VALUES('gpuops-c08bf1cdb584-5','c08bf1cdb584',5,'vm-1','SuspendVm','{"SuspendVm":{"vm":"vm-1"}}','{"host": "host-1", "power": "poweredOn", "profiles": ["nvidia_a40-24q"], "name": "desktop-01"}','done','task-1','','2026-11-20T21:00:12+00:00','2026-11-20T21:00:13+00:00','2026-11-20T21:00:37+00:00',1.0);
INSERT INTO "intents" VALUES('gpuops-c08bf1cdb584-6','c08bf1cdb584',6,'vm-2','SuspendVm','{"SuspendVm":{"vm":"vm-2"}}','{"host": "host-1", "power": "poweredOn", "profiles": ["nvidia_a40-24q"], "name": "desktop-02"}','done','task-2','','2026-11-20T21:00:12+00:00','2026-11-20T21:00:15+00:00','2026-11-20T21:00:38+00:00',1.0);
INSERT INTO "intents" VALUES('gpuops-c08bf1cdb584-7','c08bf1cdb584',7,'vm-91','PowerOnVm','{"PowerOnVm":{"vm":"vm-91","host":"host-1"}}','{"host": "host-1", "power": "poweredOff", "profiles": ["nvidia_a40-48c"], "name": "ml-01"}','done','task-3','','2026-11-20T21:00:38+00:00','2026-11-20T21:00:39+00:00','2026-11-20T21:01:03+00:00',1.0);
INSERT INTO "intents" VALUES('gpuops-c08bf1cdb584-8','c08bf1cdb584',8,'vm-92','PowerOnVm','{"PowerOnVm":{"vm":"vm-92","host":"host-2"}}','{"host": "host-2", "power": "poweredOff", "profiles": ["nvidia_a40-48c"], "name": "ml-02"}','done','task-4','','2026-11-20T21:00:38+00:00','2026-11-20T21:00:41+00:00','2026-11-20T21:01:04+00:00',1.0);
INSERT INTO "intents" VALUES('gpuops-b002bfc8bf77-1','b002bfc8bf77',1,'vm-91','ShutDownGuest','{"ShutDownGuest":{"vm":"vm-91","grace_s":60,"then_off":true}}','{"host": "host-1", "power": "poweredOn", "profiles": ["nvidia_a40-48c"], "name": "ml-01"}','done',NULL,'','2026-11-20T21:01:08+00:00','2026-11-20T21:01:09+00:00','2026-11-20T21:02:11+00:00',NULL);
INSERT INTO "intents" VALUES('gpuops-b002bfc8bf77-2','b002bfc8bf77',2,'vm-92','ShutDownGuest','{"ShutDownGuest":{"vm":"vm-92","grace_s":60,"then_off":true}}','{"host": "host-2", "power": "poweredOn", "profiles": ["nvidia_a40-48c"], "name": "ml-02"}','done',NULL,'','2026-11-20T21:01:08+00:00','2026-11-20T21:01:10+00:00','2026-11-20T21:02:12+00:00',NULL);
INSERT INTO "intents" VALUES('gpuops-b002bfc8bf77-3','b002bfc8bf77',3,'vm-1','ResumeVm','{"ResumeVm":{"vm":"vm-1","host":"host-1"}}','{"host": "host-1", "power": "suspended", "profiles": ["nvidia_a40-24q"], "name": "desktop-01"}','done','task-5','','2026-11-20T21:02:12+00:00','2026-11-20T21:02:13+00:00','2026-11-20T21:02:35+00:00',1.0);
INSERT INTO "intents" VALUES('gpuops-b002bfc8bf77-4','b002bfc8bf77',4,'vm-2','ResumeVm','{"ResumeVm":{"vm":"vm-2","host":"host-1"}}','{"host": "host-1", "power": "suspended", "profiles": ["nvidia_a40-24q"], "name": "desktop-02"}','done','task-6','','2026-11-20T21:02:35+00:00','2026-11-20T21:02:36+00:00','2026-11-20T21:02:58+00:00',1.0);
INSERT INTO "intents" VALUES('gpuops-b002bfc8bf77-5','b002bfc8bf77',5,'vm-1','SetAttribute','{"SetAttribute":{"vm":"vm-1","name":"gpuops.rotation","value":""}}','{"host": "host-1", "power": "poweredOn", "profiles": ["nvidia_a40-24q"], "name": "desktop-01"}','done',NULL,'','2026-11-20T21:02:58+00:00','2026-11-20T21:02:59+00:00','2026-11-20T21:03:00+00:00',NULL);
INSERT INTO "intents" VALUES('gpuops-b002bfc8bf77-6','b002bfc8bf77',6,'vm-2','SetAttribute','{"SetAttribute":{"vm":"vm-2","name":"gpuops.rotation","value":""}}','{"host": "host-1", "power": "poweredOn", "profiles": ["nvidia_a40-24q"], "name": "desktop-02"}','done',NULL,'','2026-11-20T21:02:59+00:00','2026-11-20T21:03:01+00:00','2026-11-20T21:03:02+00:00',NULL);
INSERT INTO "intents" VALUES('gpuops-b002bfc8bf77-7','b002bfc8bf77',7,'vm-91','SetAttribute','{"SetAttribute":{"vm":"vm-91","name":"gpuops.rotation","value":""}}','{"host": "host-1", "power": "poweredOff", "profiles": ["nvidia_a40-48c"], "name": "ml-01"}','done',NULL,'','2026-11-20T21:03:02+00:00','2026-11-20T21:03:03+00:00','2026-11-20T21:03:04+00:00',NULL);
INSERT INTO "intents" VALUES('gpuops-b002bfc8bf77-8','b002bfc8bf77',8,'vm-92','SetAttribute','{"SetAttribute":{"vm":"vm-92","name":"gpuops.rotation","value":""}}','{"host": "host-2", "power": "poweredOff", "profiles": ["nvidia_a40-48c"], "name": "ml-02"}','done',NULL,'','2026-11-20T21:03:03+00:00','2026-11-20T21:03:05+00:00','2026-11-20T21:03:06+00:00',NULL);
INSERT INTO "intents" VALUES('gpuops-f94b13845bf6-1','f94b13845bf6',1,'vm-1','SetAttribute','{"SetAttribute":{"vm":"vm-1","name":"gpuops.rotation","value":"2026-11-21 desktop"}}','{"host": "host-1", "power": "poweredOn", "profiles": ["nvidia_a40-24q"], "name": "desktop-01"}','done',NULL,'','2026-11-21T20:03:15+00:00','2026-11-21T20:03:16+00:00','2026-11-21T20:03:17+00:00',NULL);
INSERT INTO "intents" VALUES('gpuops-f94b13845bf6-2','f94b13845bf6',2,'vm-2','SetAttribute','{"SetAttribute":{"vm":"vm-2","name":"gpuops.rotation","value":"2026-11-21 desktop"}}','{"host": "host-1", "power": "poweredOn", "profiles": ["nvidia_a40-24q"], "name": "desktop-02"}','done',NULL,'','2026-11-21T20:03:16+00:00','2026-11-21T20:03:18+00:00','2026-11-21T20:03:19+00:00',NULL);
INSERT INTO "intents" VALUES('gpuops-f94b13845bf6-3','f94b13845bf6',3,'vm-91','SetAttribute','{"SetAttribute":{"vm":"vm-91","name":"gpuops.rotation","value":"2026-11-21 ml"}}','{"host": "host-1", "power": "poweredOff", "profiles": ["nvidia_a40-48c"], "name": "ml-01"}','done',NULL,'','2026-11-21T20:03:19+00:00','2026-11-21T20:03:20+00:00','2026-11-21T20:03:21+00:00',NULL);
INSERT INTO "intents" VALUES('gpuops-f94b13845bf6-4','f94b13845bf6',4,'vm-92','SetAttribute','{"SetAttribute":{"vm":"vm-92","name":"gpuops.rotation","value":"2026-11-21 ml"}}','{"host": "host-2", "power": "poweredOff", "profiles": ["nvidia_a40-48c"], "name": "ml-02"}','done',NULL,'','2026-11-21T20:03:20+00:00','2026-11-21T20:03:22+00:00','2026-11-21T20:03:23+00:00',NULL);
INSERT INTO "intents" VALUES('gpuops-f94b13845bf6-5','f94b13845bf6',5,'vm-1','SuspendVm','{"SuspendVm":{"vm":"vm-1"}}','{"host": "host-1", "power": "poweredOn", "profiles": ["nvidia_a40-24q"], "name": "desktop-01"}','submitted','task-7','','2026-11-21T20:03:23+00:00','2026-11-21T20:03:24+00:00',NULL,NULL);
INSERT INTO "intents" VALUES('gpuops-f94b13845bf6-6','f94b13845bf6',6,'vm-2','SuspendVm','{"SuspendVm":{"vm":"vm-2"}}','{"host": "host-1", "power": "poweredOn", "profiles": ["nvidia_a40-24q"], "name": "desktop-02"}','submitted','task-8','','2026-11-21T20:03:23+00:00','2026-11-21T20:03:26+00:00',NULL,NULL);
CREATE TABLE originals (
	vcenter VARCHAR NOT NULL, 
	night VARCHAR NOT NULL, 
	vm VARCHAR NOT NULL, 
	role VARCHAR NOT NULL, 
	uuid VARCHAR, 
	name VARCHAR NOT NULL, 
	host VARCHAR, 
	profiles VARCHAR NOT NULL, 
	saved VARCHAR NOT NULL, 
	returned VARCHAR, 
	PRIMARY KEY (vcenter, night, vm)
);
INSERT INTO "originals" VALUES('vc-uuid','2026-11-20','vm-1','desktop','50vm-1','desktop-01','host-1','["nvidia_a40-24q"]','2026-11-20T21:00:04+00:00','2026-11-20T21:03:07+00:00');
INSERT INTO "originals" VALUES('vc-uuid','2026-11-20','vm-2','desktop','50vm-2','desktop-02','host-1','["nvidia_a40-24q"]','2026-11-20T21:00:04+00:00','2026-11-20T21:03:08+00:00');
INSERT INTO "originals" VALUES('vc-uuid','2026-11-20','vm-91','ml','50vm-91','ml-01','host-1','["nvidia_a40-48c"]','2026-11-20T21:00:04+00:00','2026-11-20T21:03:09+00:00');
INSERT INTO "originals" VALUES('vc-uuid','2026-11-20','vm-92','ml','50vm-92','ml-02','host-2','["nvidia_a40-48c"]','2026-11-20T21:00:04+00:00','2026-11-20T21:03:10+00:00');
INSERT INTO "originals" VALUES('vc-uuid','2026-11-21','vm-1','desktop','50vm-1','desktop-01','host-1','["nvidia_a40-24q"]','2026-11-21T20:03:15+00:00',NULL);
INSERT INTO "originals" VALUES('vc-uuid','2026-11-21','vm-2','desktop','50vm-2','desktop-02','host-1','["nvidia_a40-24q"]','2026-11-21T20:03:15+00:00',NULL);
INSERT INTO "originals" VALUES('vc-uuid','2026-11-21','vm-91','ml','50vm-91','ml-01','host-1','["nvidia_a40-48c"]','2026-11-21T20:03:15+00:00',NULL);
INSERT INTO "originals" VALUES('vc-uuid','2026-11-21','vm-92','ml','50vm-92','ml-02','host-2','["nvidia_a40-48c"]','2026-11-21T20:03:15+00:00',NULL);
CREATE TABLE runs (
	id VARCHAR NOT NULL, 
	vcenter VARCHAR NOT NULL, 
	kind VARCHAR NOT NULL, 
	night VARCHAR, 
	policy VARCHAR NOT NULL, 
	policy_digest VARCHAR NOT NULL, 
	pid INTEGER NOT NULL, 
	started VARCHAR NOT NULL, 
	ended VARCHAR, 
	PRIMARY KEY (id)
);
INSERT INTO "runs" VALUES('c08bf1cdb584','vc-uuid','rotate night','2026-11-20','
version: 1
name: small
pools:
  - name: all
    parked: true
    select: {name: "desktop-*"}
    idle: {cpu_below_mhz: 500}
ml:
  queue: [{vm: ml-01}, {vm: ml-02}]
  stop: {grace_s: 60, then: power-off}
window: {opens: "20:00", closes: "06:00", zone: UTC}
limits: {in_flight: 2, per_host: 2}
','3a9d11e8cfc7fdc6736aac87bf7130f4caa501f31d5ed02a527135e24b6fab79',15655,'2026-11-20T21:00:03+00:00','2026-11-20T21:01:05+00:00');
INSERT INTO "runs" VALUES('b002bfc8bf77','vc-uuid','rotate day',NULL,'
version: 1
name: small
pools:
  - name: all
    parked: true
    select: {name: "desktop-*"}
    idle: {cpu_below_mhz: 500}
ml:
  queue: [{vm: ml-01}, {vm: ml-02}]
  stop: {grace_s: 60, then: power-off}
window: {opens: "20:00", closes: "06:00", zone: UTC}
limits: {in_flight: 2, per_host: 2}
','3a9d11e8cfc7fdc6736aac87bf7130f4caa501f31d5ed02a527135e24b6fab79',15655,'2026-11-20T21:01:08+00:00','2026-11-20T21:03:11+00:00');
INSERT INTO "runs" VALUES('f94b13845bf6','vc-uuid','rotate night','2026-11-21','
version: 1
name: small
pools:
  - name: all
    parked: true
    select: {name: "desktop-*"}
    idle: {cpu_below_mhz: 500}
ml:
  queue: [{vm: ml-01}, {vm: ml-02}]
  stop: {grace_s: 60, then: power-off}
window: {opens: "20:00", closes: "06:00", zone: UTC}
limits: {in_flight: 2, per_host: 2}
','3a9d11e8cfc7fdc6736aac87bf7130f4caa501f31d5ed02a527135e24b6fab79',15655,'2026-11-21T20:03:14+00:00',NULL);
CREATE TABLE schema_version (
	version INTEGER NOT NULL, 
	PRIMARY KEY (version)
);
INSERT INTO "schema_version" VALUES(1);
CREATE INDEX ix_intents_run ON intents (run);
COMMIT;
