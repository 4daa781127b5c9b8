package route

import (
	"github.com/fairlead-cni/fairlead/resource"
	"github.com/fairlead-cni/fairlead/resource/routing"
)

func (n neighbour) change(key string, all *changes) error {
	do, err := verb(key, n.Action, Add, Replace, Del, Flush)
	if err != nil {
		return err
	}
	e := routing.NeighbourEntry{}
	if e.V4, e.V6, err = n.Family.families(key, true); err != nil {
		return err
	}
	if do == routing.Flush {
		if n != (neighbour{Action: n.Action, Family: n.Family}) {
			return bad("%s: flush takes family; want \"action\": \"del\" for one neighbour", key)
		}
		all.add(key, do, e)
		return nil
	}
	if e.Addr, err = address(key+".dst", n.Dst, "the address of a neighbour"); err != nil {
		return err
	}
	if n.LLAddr != "" || do != routing.Del {
		if err := resource.ValidMAC(key+".lladdr", n.LLAddr); err != nil {
			return err
		}
		e.MAC = n.LLAddr
	}
	e.V4, e.V6 = false, false
	all.add(key, do, e)
	return nil
}
