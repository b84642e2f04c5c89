"""What a flow is: policy, spec, cell language, builder, signatures and checks."""
