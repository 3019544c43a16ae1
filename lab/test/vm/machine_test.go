//go:build e2e

package vm

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/layer-locality/layer-locality/internal/poll"
	"github.com/layer-locality/layer-locality/lab/cluster"
)

// bootTime is how long the machine may take until it accepts a login: half a minute on an idle
// host of two cores, since its instructions are translated.
const bootTime = 6 * time.Minute

// virtual is a virtual machine with Debian in the cluster's network.
type virtual struct {
	guest   *cluster.Guest
	console string // the path of what it prints
	emulate *exec.Cmd
	ended   chan error
	login   *ssh.ClientConfig
}

// boot starts the machine. It has a copy of the disk, which goes with the cluster.
func boot(ctx context.Context, c *cluster.Cluster, name, template string) (*virtual, error) {
	guest, err := c.AddGuest(name)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(c.Dir(), name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	disk := filepath.Join(dir, "disk.ext4")
	if out, err := exec.CommandContext(ctx, "cp", "--sparse=always", filepath.Join(template, "disk.ext4"), disk).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("copy the disk: %w: %s", err, out)
	}
	m := &virtual{guest: guest, console: filepath.Join(c.LogDir(), name+".console.log"), ended: make(chan error, 1)}
	if m.login, err = login(template); err != nil {
		return nil, err
	}
	program, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		return nil, err
	}
	m.emulate = exec.Command(program,
		// Not KVM: where /dev/kvm exists, it may accept a machine and then hang.
		"-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "3072",
		"-nodefaults", "-no-user-config", "-display", "none", "-serial", "file:"+m.console,
		"-kernel", filepath.Join(template, "kernel"), "-initrd", filepath.Join(template, "initrd"),
		"-append", fmt.Sprintf("root=/dev/vda rw console=ttyS0 systemd.hostname=%s node.address=%s node.gateway=%s", name, guest.Address, guest.Gateway),
		"-drive", "file="+disk+",format=raw,if=virtio,cache=unsafe",
		"-netdev", "tap,id=net,ifname="+name+",script=no,downscript=no", "-device", "virtio-net-pci,netdev=net",
		"-device", "virtio-rng-pci")
	var stderr bytes.Buffer
	m.emulate.Stderr = &stderr
	if err := guest.Start(m.emulate); err != nil {
		return nil, err
	}
	go func() {
		err := m.emulate.Wait()
		m.ended <- fmt.Errorf("the emulator has ended: %w: %s", errors.Join(err), bytes.TrimSpace(stderr.Bytes()))
	}()
	return m, m.accepts(ctx)
}

// login reads the keys: the guest's own is known, like that of a machine that was installed from
// an image.
func login(template string) (*ssh.ClientConfig, error) {
	key, err := os.ReadFile(filepath.Join(template, "key"))
	if err != nil {
		return nil, err
	}
	signer, err := ssh.ParsePrivateKey(key)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(template, "host.pub"))
	if err != nil {
		return nil, err
	}
	host, _, _, _, err := ssh.ParseAuthorizedKey(text)
	if err != nil {
		return nil, err
	}
	return &ssh.ClientConfig{
		User: "root", Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)},
		HostKeyCallback: ssh.FixedHostKey(host), HostKeyAlgorithms: []string{host.Type()}, Timeout: 20 * time.Second,
	}, nil
}

// accepts waits until the machine accepts a login.
func (m *virtual) accepts(ctx context.Context) error {
	return poll.Until(ctx, time.Second, bootTime, func(ctx context.Context) error {
		select {
		case err := <-m.ended:
			m.ended <- err
			return err
		default:
		}
		_, err := m.run(ctx, "true", nil)
		return err
	})
}

// run has a shell of the machine run a script, ending at the first command that fails, and
// returns what it prints.
func (m *virtual) run(ctx context.Context, script string, input io.Reader) (string, error) {
	connection, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(m.guest.Address.Addr().String(), "22"))
	if err != nil {
		return "", err
	}
	defer connection.Close()
	defer context.AfterFunc(ctx, func() { connection.Close() })()
	c, channels, requests, err := ssh.NewClientConn(connection, "", m.login)
	if err != nil {
		return "", err
	}
	client := ssh.NewClient(c, channels, requests)
	defer client.Close()
	session, err := client.NewSession()
	if err != nil {
		return "", err
	}
	defer session.Close()
	var out, stderr bytes.Buffer
	session.Stdin, session.Stdout, session.Stderr = input, &out, &stderr
	// In one argument, whatever it holds.
	if err := session.Run("set -eu\n" + script); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s", strings.TrimSpace(script), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out.String(), nil
}

// copy puts files into the machine: what to read here, by the path there.
func (m *virtual) copy(ctx context.Context, mode int64, files map[string]string) error {
	read, write := io.Pipe()
	go func() { write.CloseWithError(archive(write, mode, files)) }()
	_, err := m.run(ctx, "tar -xf - -C /", read)
	return errors.Join(err, read.Close())
}

func archive(to io.Writer, mode int64, files map[string]string) error {
	out := tar.NewWriter(to)
	for path, from := range files {
		data, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		header := &tar.Header{Name: strings.TrimPrefix(path, "/"), Mode: mode, Size: int64(len(data)), ModTime: time.Now(), Typeflag: tar.TypeReg}
		if err := out.WriteHeader(header); err != nil {
			return err
		}
		if _, err := out.Write(data); err != nil {
			return err
		}
	}
	return out.Close()
}

// reboot restarts the machine and waits for its next boot.
func (m *virtual) reboot(ctx context.Context) error {
	const which = "cat /proc/sys/kernel/random/boot_id"
	before, err := m.run(ctx, which, nil)
	if err != nil {
		return err
	}
	// The answer may be lost with the connection.
	_, _ = m.run(ctx, "systemctl reboot", nil)
	return poll.Until(ctx, time.Second, bootTime, func(ctx context.Context) error {
		now, err := m.run(ctx, which, nil)
		if err == nil && now == before {
			err = errors.New("it has not restarted yet")
		}
		return err
	})
}

// stop ends the emulator: the machine has no power any more.
func (m *virtual) stop() {
	_ = m.emulate.Process.Signal(syscall.SIGTERM)
	<-m.ended
}
