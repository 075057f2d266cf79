// The peers gpuops is checked against: govc and vcsim, built from one tagged release of govmomi.
//
// v0.52.0 on purpose: v0.53 to v0.56 send empty required enums, which pyvmomi cannot read (govmomi issue 4084).
// Two short mains because govmomi's own mains are nested modules with `replace` lines since v0.47.
module gpuops/tests/peers

go 1.23.0

require github.com/vmware/govmomi v0.52.0

require (
	github.com/a8m/tree v0.0.0-20240104212747-2c8764a5f17e // indirect
	github.com/dougm/pretty v0.0.0-20160325215624-add1dbc86daf // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/kr/text v0.2.0 // indirect
	github.com/rogpeppe/go-internal v1.9.0 // indirect
)
