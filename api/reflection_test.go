//lint:file-ignore SA1019 Tools that are a few years old ask for the deprecated v1alpha.

package api

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	alphapb "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"zamok/api/zamokpb"
)

// TestReflection calls a follower, which relays, with nothing but what the node says about itself.
func TestReflection(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 2, nil)
	c.leader()
	conn, ctx := call(t, c.follower()).conn, soon(t)
	stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	require.NoError(t, err)
	query :=
		func(request *reflectionpb.ServerReflectionRequest) *reflectionpb.ServerReflectionResponse {
			require.NoError(t, stream.Send(request))
			answer, err := stream.Recv()
			require.NoError(t, err)
			require.Nil(t, answer.GetErrorResponse())
			return answer
		}
	var services []string
	list := &reflectionpb.ServerReflectionRequest{
		MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}
	for _, service := range query(list).GetListServicesResponse().GetService() {
		services = append(services, service.Name)
	}
	assert.ElementsMatch(t, []string{
		"zamok.v1.Zamok", "zamok.v1.Admin", "grpc.health.v1.Health",
		"grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection",
	}, services)

	files :=
		query(&reflectionpb.ServerReflectionRequest{
			MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{
				FileContainingSymbol: "zamok.v1.Zamok",
			}}).GetFileDescriptorResponse().GetFileDescriptorProto()
	require.Len(t, files, 1, "the protocol imports nothing")
	described := &descriptorpb.FileDescriptorProto{}
	require.NoError(t, proto.Unmarshal(files[0], described))
	file, err := protodesc.NewFile(described, nil)
	require.NoError(t, err)
	methods := file.Services().ByName("Zamok").Methods()
	invoke := func(method, request string) protoreflect.Message {
		described := methods.ByName(protoreflect.Name(method))
		require.NotNil(t, described, method)
		in, out := dynamicpb.NewMessage(described.Input()), dynamicpb.NewMessage(described.Output())
		require.NoError(t, protojson.Unmarshal([]byte(request), in))
		require.NoError(t, persistent{conn}.Invoke(relaying(ctx), "/zamok.v1.Zamok/"+method,
			in, out))
		return out
	}
	field := func(m protoreflect.Message, name protoreflect.Name) protoreflect.Value {
		return m.Get(m.Descriptor().Fields().ByName(name))
	}
	assert.Positive(t, field(field(invoke("Now", `{}`), "stamp").Message(), "index").Uint())
	opened := invoke("OpenSession",
		`{"secret":"MDEyMzQ1Njc4OWFiY2RlZg==","settings":{"ttl":"60000000000"}}`)
	assert.Positive(t, field(opened, "session").Uint())
	assert.EqualValues(t, 60_000_000_000, field(opened, "ttl").Int())

	// Tools that are a few years old query under the former name; and no cluster has to be named.
	former, err := alphapb.NewServerReflectionClient(conn).ServerReflectionInfo(
		metadata.AppendToOutgoingContext(ctx, zamokpb.ClusterKey, "?"))
	require.NoError(t, err)
	require.NoError(t,
		former.Send(&alphapb.ServerReflectionRequest{
			MessageRequest: &alphapb.ServerReflectionRequest_ListServices{}}))
	answer, err := former.Recv()
	require.NoError(t, err)
	assert.Len(t, answer.GetListServicesResponse().GetService(), len(services))
}

// TestReflectionNeedsNoPermission, and has the limits of other calls.
func TestReflectionNeedsNoPermission(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, func(cfg *NodeConfig) {
		cfg.Rules = theseRules(t, "rules: []")
	})
	client, ctx := reflectionpb.NewServerReflectionClient(call(t, c.leader()).conn), soon(t)
	query := func(symbol string) error {
		stream, err := client.ServerReflectionInfo(ctx)
		require.NoError(t, err)
		require.NoError(t, stream.Send(&reflectionpb.ServerReflectionRequest{
			MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{
				FileContainingSymbol: symbol},
		}))
		_, err = stream.Recv()
		return err
	}
	require.NoError(t, query("zamok.v1.Admin"))
	require.Equal(t, codes.ResourceExhausted, status.Code(query(strings.Repeat("a", 64<<10))))
}
