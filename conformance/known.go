package conformance

// known is the profile of plugins that many hosts have. Their breaks are what their documentation says that they make.
const known = `{"plugins": {
	"bridge": {"kind": "interface", "conf": {"bridge": "conf0", "isGateway": true, "ipam": "$ipam"},
		"reaches": ["containers", "gateway"]},
	"ptp": {"kind": "interface", "conf": {"ipam": "$ipam"}, "reaches": ["gateway"]}
}}`
